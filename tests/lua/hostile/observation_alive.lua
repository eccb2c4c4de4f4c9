-- Messages whose fields are computed by an endless metamethod.
-- expect: env_error
-- message: has a metatable; plain data has none
return {
  context = function()
    return { setmetatable({ role = "user", content = "x" }, { __index = function() while true do end end }) }
  end,
}
