-- One argument more at every level.
-- expect: env_error | script_limit
-- message:
local function f(...) return 1 + f(1, ...) end
return { reset = function() return f() end }
