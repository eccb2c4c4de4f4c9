-- Keeps small tables endlessly.
-- expect: script_limit
-- message: reset needs more memory than limits.trajectory = 32 MiB
-- cpu: 5
return {
  reset = function()
    local all = {}
    while true do all[#all + 1] = { {} } end
  end,
}
