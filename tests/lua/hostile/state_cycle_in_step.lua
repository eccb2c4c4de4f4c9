-- A state that contains itself after a step.
-- expect: env_error
-- message: state.a.me.a.me
return {
  step = function(state, action, good)
    local result = good(state, action)
    state.a = { me = state }
    return result
  end,
}
