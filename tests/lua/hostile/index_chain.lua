-- A chain of __index tables that leads back to its start.
-- expect: env_error
-- message: '__index' chain too long
local a, b = {}, {}
setmetatable(a, { __index = b })
setmetatable(b, { __index = a })
return {
  reset = function()
    return { x = a.nothing } -- here
  end,
}
