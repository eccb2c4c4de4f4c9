-- The conversation becomes something else.
-- expect: env_error
-- message: role is the text "robot"
return {
  context = function(state)
    return state.messages
  end,
  step = function(state, action, good)
    local result = good(state, action)
    state.messages[2] = { role = "robot", content = "x" }
    return result
  end,
}
