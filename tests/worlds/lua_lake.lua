--- An environment in Lua that always shows the same, to compare speeds with.
local TEXT = "\n[S]FFF\nFHFH\nFFFH\nHFFG\n"

return r1.recipe {
  env = r1.env {
    reset = function(task) return { task = task, steps = 0, messages = { r1.user(TEXT) } } end,
    step = function(state, action)
      state.steps += 1
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.messages, r1.user(TEXT))
      return { reward = 0, truncated = state.steps == 100 }
    end,
  },
  reward = function() return 0 end,
  data = { train = r1.data.generate { count = 4, row = function(i) return { seed = i } end } },
}
