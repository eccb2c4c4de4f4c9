-- Changes the object returned by r1.context.
-- expect: env_error
-- message: readonly
return {
  reset = function()
    local class = getmetatable(r1.context { r1.user("x") })
    if type(class) ~= "table" then error("readonly") end
    class.drop_oldest_until = function() error("hacked") end
    class.__index = {}
  end,
}
