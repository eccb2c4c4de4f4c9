-- A text that doubles for ever.
-- expect: script_limit
-- says: reset needs more memory than limits.trajectory = 32 MiB
return {
  reset = function()
    local text = "xxxxxxxxxxxxxxxx"
    while true do text = text .. text end
  end,
}
