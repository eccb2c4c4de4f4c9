--- A conversation without tools that measures host overhead: each step adds two messages; eight
--- steps.

local env = r1.env {
  max_steps = 8,
  reset = function()
    return { left = 8, messages = { r1.user("A train leaves at nine with 31 people and stops twice. How many are left?") } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    r1.push(state.messages, r1.user("That is one way to see it. Go on."))
    state.left = state.left - 1
    return { reward = 0.5, done = state.left == 0 }
  end,
}

return r1.recipe { env = env, data = { train = r1.data.generate { count = 1024, row = function() return {} end } } }
