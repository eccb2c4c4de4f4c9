-- Changes the shared libraries.
-- expect: env_error
-- message: attempt to modify a readonly table
return {
  reset = function()
    pcall(rawset, string, "rep", nil)
    pcall(rawset, math, "random", function() return 4 end)
    pcall(rawset, getmetatable("").__index, "rep", nil)
    pcall(rawset, getmetatable(""), "__index", {})
    pcall(table.clear, table)
    pcall(table.move, { 1 }, 1, 1, 1, table)
    table.sort = nil -- here
  end,
}
