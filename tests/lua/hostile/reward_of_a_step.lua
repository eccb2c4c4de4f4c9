-- A step reward that is not a number.
-- expect: env_error
-- message: step: reward is NaN
return {
  step = function()
    return { reward = 0 / 0 }
  end,
}
