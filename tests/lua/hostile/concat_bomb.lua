-- table.concat of one long text, many times.
-- expect: script_limit
-- message: reset needs more memory than limits.trajectory = 32 MiB
return {
  reset = function()
    return { text = table.concat(table.create(10000, string.rep("x", 1000000))) }
  end,
}
