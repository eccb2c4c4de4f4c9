-- step returns fields that nobody knows.
-- expect: env_error
-- says: step returned the unknown field `rewrad`
return {
  step = function()
    return { rewrad = 1 }
  end,
}
