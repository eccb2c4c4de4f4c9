-- The context policy puts a function into the state, for the next step to find.
-- expect: env_error
-- says: state.later is a function
return {
  context = function(state)
    state.later = print
    return state.messages
  end,
}
