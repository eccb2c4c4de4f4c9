-- pcall of itself, endlessly.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
local function f() return pcall(f) end
return {
  reset = function()
    while true do f() end
  end,
}
