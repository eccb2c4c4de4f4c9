-- Writing a global.
-- expect: env_error
-- message: assignment to global `counter`
return {
  reset = function()
    counter = 1 -- here
  end,
}
