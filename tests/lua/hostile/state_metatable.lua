-- A metatable in the state.
-- expect: env_error
-- message: state.board has a metatable; plain data has none
return {
  reset = function(task, good)
    local state = good(task)
    state.board = setmetatable({}, { __metatable = "hidden" })
    return state
  end,
}
