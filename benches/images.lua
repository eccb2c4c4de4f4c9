--- A question about a picture, for `images.py`. The reward differs between trajectories, so that
--- every group has advantages.
---
---   r1 run benches/images.lua policy.model=MODEL params.tasks=TASKS.parquet

local params = r1.params { tasks = "tasks.parquet" }

local env = r1.env {
  max_steps = 1,
  reset = function(task)
    local content = { assert(r1.image(task.image)), { type = "text", text = task.prompt } }
    return { messages = { { role = "user", content = content } } }
  end,
}

return r1.recipe {
  env = env,
  reward = function(_, outcome) return #outcome.text % 7 end,
  policy = { dtype = "f32" },
  data = {
    train = r1.data.parquet { path = params.tasks, columns = { image = "image", prompt = "prompt" } },
    shuffle = false,
  },
  sampling = { max_new_tokens = 32 },
  trainer = r1.grpo {
    group_size = 8, groups_per_step = 2, lr = 1e-5, clip = { 0.2, 0.2 }, loss_agg = "seq-mean-token-mean",
  },
  checkpoint = { every = 0 },
}
