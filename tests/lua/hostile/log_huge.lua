-- A line of megabytes, an endless table, a value with a wrong text length.
-- expect: env_error
-- message: printed
return {
  reset = function()
    local bomb = { "x" }
    for _ = 1, 60 do bomb = { bomb, bomb } end
    print(string.rep("x", 8000000), bomb)
    print(setmetatable({}, { __tostring = function() return 5 end }))
    error("printed") -- here
  end,
}
