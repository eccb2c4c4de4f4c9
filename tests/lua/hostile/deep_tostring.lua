-- __tostring that prints itself.
-- expect: env_error | script_limit
-- message:
local trap
trap = setmetatable({}, { __tostring = function() print(trap) return "x" end })
return { reset = function() print(trap) error("printed") end }
