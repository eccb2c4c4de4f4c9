-- A state that holds one text a thousand times.
-- expect: script_limit
-- message: the state after reset is more than limits.trajectory = 32 MiB
return {
  reset = function(task, good)
    local state = good(task)
    state.list = table.create(1000, string.rep("x", 100000))
    return state
  end,
}
