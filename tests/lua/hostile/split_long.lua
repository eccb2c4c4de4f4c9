-- string.split by a separator that nearly matches everywhere.
-- expect: env_error
-- message: string.split: a pattern of 4000001 bytes
return {
  reset = function()
    return string.split(string.rep("a", 8000000), string.rep("a", 4000000) .. "b") -- here
  end,
}
