-- A table as a key in the state.
-- expect: env_error
-- message: state has a table as a key
return {
  reset = function(task, good)
    local state = good(task)
    state[{}] = 1
    return state
  end,
}
