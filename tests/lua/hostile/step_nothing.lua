-- step returns nothing.
-- expect: env_error
-- message: step returned nil; it must return { reward = …, done = … }
return {
  step = function()
  end,
}
