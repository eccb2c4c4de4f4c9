-- Ten thousand named parts.
-- expect: env_error
-- message: there are more than 64 named fields or parts
return {
  reward = function()
    local parts = {}
    for k = 1, 10000 do parts["part" .. k] = k end
    return parts
  end,
}
