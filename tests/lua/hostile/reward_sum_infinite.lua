-- Parts that are finite and whose sum is not.
-- expect: env_error
-- message: the sum of the reward's parts is infinity
return {
  reward = function()
    return { a = 1.7e308, b = 1.7e308 }
  end,
}
