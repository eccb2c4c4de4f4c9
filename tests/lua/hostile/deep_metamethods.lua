-- Metamethods that call each other: the stack of C grows.
-- expect: env_error
-- message: stack overflow
local trap = setmetatable({}, { __index = function(t, k) return t[k + 1] end })
return { reset = function() return { x = trap[1] } end }
