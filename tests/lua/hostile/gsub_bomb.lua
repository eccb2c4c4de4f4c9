-- Every letter of a long text becomes a long text.
-- expect: script_limit
-- message: reset needs more memory than limits.trajectory = 32 MiB
return {
  reset = function()
    return { text = string.gsub(string.rep("a", 100000), "a", string.rep("b", 100000)) }
  end,
}
