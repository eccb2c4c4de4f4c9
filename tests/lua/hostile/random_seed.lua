-- Seeds the random numbers, which must not affect others.
-- expect: terminated
-- message:
return {
  step = function(state, action, good)
    math.randomseed(7)
    for _ = 1, 1000 do math.random() end
    return good(state, action)
  end,
}
