-- Comparison metamethods that do not end.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
local meta = { __lt = function() while true do end end }
return {
  reset = function()
    table.sort({ setmetatable({}, meta), setmetatable({}, meta), setmetatable({}, meta) })
  end,
}
