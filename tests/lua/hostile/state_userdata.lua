-- A tool in the state.
-- expect: env_error
-- message: state.tool is a userdata
local tool = r1.tools.rhai {}
return {
  reset = function(task, good)
    local state = good(task)
    state.tool = tool
    return state
  end,
}
