-- reset returns no state.
-- expect: env_error
-- message: reset returned the number 5; it must return the state, a table
return {
  reset = function()
    return 5
  end,
}
