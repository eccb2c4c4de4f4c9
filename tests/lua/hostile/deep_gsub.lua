-- gsub inside the replacement of gsub, endlessly.
-- expect: env_error
-- message: stack overflow
local function f(s) return (string.gsub(s, ".", f)) end
return { reset = function() return { x = f("x") } end }
