-- A reward that is not a number.
-- expect: env_error
-- message: reward part `score` is NaN
return {
  reward = function()
    return { score = 0 / 0 }
  end,
}
