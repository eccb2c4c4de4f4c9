-- step returns unknown fields.
-- expect: env_error
-- message: step returned the unknown field `rewrad`
return {
  step = function()
    return { rewrad = 1 }
  end,
}
