-- An error object whose __tostring fails.
-- expect: env_error
-- message:
return {
  reset = function()
    error(setmetatable({}, { __tostring = function() error("and again") end }))
  end,
}
