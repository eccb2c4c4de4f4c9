-- An __index metamethod that does not end, inside pcall.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
local trap = setmetatable({}, { __index = function() while true do end end })
return {
  reset = function()
    while true do pcall(function() return trap.x end) end
  end,
}
