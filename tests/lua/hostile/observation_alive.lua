-- Messages whose fields are answered by a metamethod that does not end.
-- expect: env_error
-- says: has a metatable; plain data has none
return {
  context = function()
    return { setmetatable({ role = "user", content = "x" }, { __index = function() while true do end end }) }
  end,
}
