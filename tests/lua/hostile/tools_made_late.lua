-- A tool, an env and a recipe created during a trajectory.
-- expect: env_error
-- message: state.made is a userdata
return {
  step = function(state, action, good)
    for k = 1, 1000 do
      state.made = r1.tool { name = "t" .. k, parameters = { x = "string" }, run = function() return "x" end }
    end
    state.made = r1.env {}
    return good(state, action)
  end,
}
