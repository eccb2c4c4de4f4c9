-- The context policy puts a function into the state for the next step.
-- expect: env_error
-- message: state.later is a function
return {
  context = function(state)
    state.later = print
    return state.messages
  end,
}
