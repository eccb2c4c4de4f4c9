-- An error message of megabytes.
-- expect: env_error
-- message: xxxxxxxxxx
return {
  reset = function()
    error(string.rep("x", 2000000))
  end,
}
