-- Changes the action and stores it in the state.
-- expect: env_error
-- message: state.action.text is a function
return {
  step = function(state, action, good)
    local result = good(state, action)
    table.clear(action.token_ids)
    action.text = print
    state.action = action
    return result
  end,
}
