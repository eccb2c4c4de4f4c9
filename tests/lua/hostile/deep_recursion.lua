-- Recursion without end.
-- expect: env_error
-- says: stack overflow
local function f(n)
  return 1 + f(n + 1) -- here
end
return { reset = function() return f(1) end }
