-- Endless recursion.
-- expect: env_error
-- message: stack overflow
local function f(n)
  return 1 + f(n + 1) -- here
end
return { reset = function() return f(1) end }
