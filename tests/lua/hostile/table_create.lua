-- A table of 2^26 numbers at once.
-- expect: script_limit
-- message: reset needs more memory than limits.trajectory = 32 MiB
return {
  reset = function()
    return { list = table.create(67108864, 1) }
  end,
}
