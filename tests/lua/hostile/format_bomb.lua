-- string.format that repeats a long text.
-- expect: script_limit
-- message: reset needs more memory than limits.trajectory = 32 MiB
return {
  reset = function()
    local text = "x"
    while true do text = string.format("%s%s%s%s", text, text, text, text) end
  end,
}
