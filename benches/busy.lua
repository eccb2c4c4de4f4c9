--- A step for `busy.py`: long responses, and rewards that differ.

return r1.recipe {
  env = r1.env {
    max_steps = 1,
    reset = function() return { messages = { r1.user("Write a long story about a ship and its crew.") } } end,
    step = function(_, action) return { reward = #action.text % 7, done = true } end,
  },
  data = { train = r1.data.generate { count = 64, row = function(index) return { prompt = tostring(index) } end } },
  sampling = { max_new_tokens = 96 },
  trainer = r1.grpo { steps = 2, group_size = 8, groups_per_step = 1, lr = 1e-6 },
}
