-- Seeding the random numbers, for everybody it hopes.
-- expect: terminated
-- says:
return {
  step = function(state, action, good)
    math.randomseed(7)
    for _ = 1, 1000 do math.random() end
    return good(state, action)
  end,
}
