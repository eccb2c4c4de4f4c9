-- Writes to r1 in every possible way.
-- expect: env_error
-- message: attempt to modify a readonly table
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
