-- Endless tail calls; Luau keeps a frame for each.
-- expect: env_error
-- message: stack overflow
local function again(n)
  return again(n + 1) -- here
end
return { reset = function() return again(1) end }
