-- The same as plain text.
-- expect: script_limit
-- message: the observation has more text than limits.text = 1 MiB
return {
  context = function()
    return string.rep("x ", 1048576)
  end,
}
