-- A state that contains itself.
-- expect: env_error
-- message: is nested too deeply, or contains itself
return {
  reset = function(task, good)
    local state = good(task)
    state.me = state
    return state
  end,
}
