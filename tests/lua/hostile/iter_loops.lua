-- An __iter metamethod whose iteration does not end.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
local trap = setmetatable({}, { __iter = function() return function() return 1 end end })
return {
  reset = function()
    for _ in trap do end
  end,
}
