-- A buffer in the state.
-- expect: env_error
-- message: state.bytes is a buffer
return {
  reset = function(task, good)
    local state = good(task)
    state.bytes = buffer.create(8)
    return state
  end,
}
