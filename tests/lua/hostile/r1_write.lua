-- Writing to r1, by all ways there are.
-- expect: env_error
-- says: attempt to modify a readonly table
return {
  reset = function()
    pcall(rawset, r1, "user", function() return "hacked" end)
    pcall(setmetatable, r1, {})
    pcall(rawset, r1.json, "encode", nil)
    pcall(table.insert, r1, 1)
    pcall(table.clear, r1)
    r1.user = nil -- here
  end,
}
