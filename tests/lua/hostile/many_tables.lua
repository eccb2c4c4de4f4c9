-- Small tables without end, kept.
-- expect: script_limit
-- says: reset needs more memory than limits.trajectory = 32 MiB
return {
  reset = function()
    local all = {}
    while true do all[#all + 1] = { {} } end
  end,
}
