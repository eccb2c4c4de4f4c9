-- A state that comes to contain itself in a step.
-- expect: env_error
-- says: state.a.me.a.me
return {
  step = function(state, action, good)
    local result = good(state, action)
    state.a = { me = state }
    return result
  end,
}
