-- A state that grows with every step.
-- expect: script_limit
-- message: the state after step is more than limits.trajectory = 32 MiB
return {
  step = function(state, action, good)
    local result = good(state, action)
    for k = 1, 15 do state[state.n * 100 + k] = string.rep("x", 1000000) .. k end
    return result
  end,
}
