-- The state itself has one, which answers for everything.
-- expect: env_error
-- says: state has a metatable; plain data has none
return {
  reset = function(task, good)
    return setmetatable(good(task), { __index = function() while true do end end, __newindex = function() end })
  end,
}
