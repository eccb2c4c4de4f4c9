-- Tail calls without end; Luau keeps a frame for each.
-- expect: env_error
-- says: stack overflow
local function again(n)
  return again(n + 1) -- here
end
return { reset = function() return again(1) end }
