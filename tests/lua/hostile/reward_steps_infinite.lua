-- Step rewards that are finite and whose sum is not.
-- expect: env_error
-- message: the rewards of the steps add up to infinity
return {
  step = function(state, action, good)
    local result = good(state, action)
    result.reward = 1.7e308
    return result
  end,
}
