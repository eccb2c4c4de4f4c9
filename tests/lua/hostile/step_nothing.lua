-- step returns nothing.
-- expect: env_error
-- says: step returned nil; it must return { reward = …, done = … }
return {
  step = function()
  end,
}
