-- A part with a name of a megabyte.
-- expect: env_error
-- message: the name of a field is longer than 64 bytes
return {
  reward = function()
    return { [string.rep("x", 1000000)] = 1 }
  end,
}
