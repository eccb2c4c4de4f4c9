-- gsub inside the replacement of gsub, without end.
-- expect: env_error
-- says: stack overflow
local function f(s) return (string.gsub(s, ".", f)) end
return { reset = function() return { x = f("x") } end }
