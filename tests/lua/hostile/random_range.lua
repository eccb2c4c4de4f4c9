-- math.random with every odd range.
-- expect: env_error
-- message: math.random: the range 5 to 1 is empty
return {
  reset = function()
    math.random(-9007199254740992, 9007199254740992)
    pcall(math.random, 0 / 0)
    pcall(math.random, math.huge)
    pcall(math.random, "9" .. string.rep("9", 400))
    return { x = math.random(5, 1) } -- here
  end,
}
