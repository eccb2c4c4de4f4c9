-- A hundred thousand messages that are the same one.
-- expect: script_limit
-- message: the observation has more text than limits.text = 1 MiB
return {
  context = function()
    return table.create(100000, r1.user(string.rep("x", 100000)))
  end,
}
