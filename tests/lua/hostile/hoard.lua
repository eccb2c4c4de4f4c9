-- Functions keep tables for themselves, trajectory after trajectory: the machine is replaced.
-- expect: terminated | script_limit
-- says:
-- times: 20
local kept = {}
return {
  reset = function(task, good)
    kept[#kept + 1] = string.rep("x", 20000000) .. #kept
    return good(task)
  end,
}
