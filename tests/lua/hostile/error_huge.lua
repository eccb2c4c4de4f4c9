-- An error message of megabytes.
-- expect: env_error
-- says: xxxxxxxxxx
return {
  reset = function()
    error(string.rep("x", 2000000))
  end,
}
