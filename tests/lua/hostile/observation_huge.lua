-- An observation of two MiB.
-- expect: script_limit
-- message: the observation has more text than limits.text = 1 MiB
return {
  context = function()
    return { r1.user(string.rep("x ", 1048576)) }
  end,
}
