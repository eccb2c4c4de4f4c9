-- A state nested two hundred deep.
-- expect: env_error
-- message: is nested too deeply, or contains itself
return {
  reset = function(task, good)
    local state = good(task)
    for _ = 1, 200 do state = { inner = state } end
    return state
  end,
}
