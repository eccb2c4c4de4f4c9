-- Functions keep tables across trajectories: the VM is replaced.
-- expect: terminated | script_limit
-- message:
-- times: 20
local kept = {}
return {
  reset = function(task, good)
    kept[#kept + 1] = string.rep("x", 20000000) .. #kept
    return good(task)
  end,
}
