-- math.random with every odd range.
-- expect: env_error
-- message: math.random: nothing lies between 5 and 1
return {
  reset = function()
    math.random(-9007199254740992, 9007199254740992)
    pcall(math.random, 0 / 0)
    pcall(math.random, math.huge)
    pcall(math.random, "9" .. string.rep("9", 400))
    return { x = math.random(5, 1) } -- here
  end,
}
