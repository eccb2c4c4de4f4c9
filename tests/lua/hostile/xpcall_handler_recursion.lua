-- The error handler calls xpcall with itself.
-- expect: script_limit | env_error
-- message: reset
local function handler() return xpcall(error, handler, "x") end
return {
  reset = function()
    while true do xpcall(error, handler, "x") end
  end,
}
