-- The state has a metatable with __index.
-- expect: env_error
-- message: state has a metatable; plain data has none
return {
  reset = function(task, good)
    return setmetatable(good(task), { __index = function() while true do end end, __newindex = function() end })
  end,
}
