-- A line of megabytes, a table that spells out without end, a value that lies about its text.
-- expect: env_error
-- says: printed
return {
  reset = function()
    local bomb = { "x" }
    for _ = 1, 60 do bomb = { bomb, bomb } end
    print(string.rep("x", 8000000), bomb)
    print(setmetatable({}, { __tostring = function() return 5 end }))
    error("printed") -- here
  end,
}
