-- An error object whose __index does not end.
-- expect: env_error
-- message: an error value that is a table without text
return {
  reset = function()
    local trap = function() while true do end end
    error(setmetatable({}, { __index = trap, __len = trap, __eq = trap, __concat = trap, __metatable = false }))
  end,
}
