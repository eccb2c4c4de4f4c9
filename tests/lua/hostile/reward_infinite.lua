-- An infinite reward, with a weight that is one too.
-- expect: env_error
-- message: reward part `score`: weight is infinity
return {
  reward = function()
    return { score = { value = 1, weight = math.huge } }
  end,
}
