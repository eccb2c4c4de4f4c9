-- A text that doubles endlessly.
-- expect: script_limit
-- message: reset needs more memory than limits.trajectory = 32 MiB
return {
  reset = function()
    local text = "xxxxxxxxxxxxxxxx"
    while true do text = text .. text end
  end,
}
