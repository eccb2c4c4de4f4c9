-- The action is taken apart and left in the state, changed.
-- expect: env_error
-- says: state.action.text is a function
return {
  step = function(state, action, good)
    local result = good(state, action)
    table.clear(action.token_ids)
    action.text = print
    state.action = action
    return result
  end,
}
