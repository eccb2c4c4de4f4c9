--- The task of benches/real.py, for a model with a chat template: sums of two numbers of two
--- digits.
---
---   r1 run benches/real.lua policy.model=MODEL data.train=TASKS.jsonl
---   r1 sft benches/real.lua params.sft=true policy.model=MODEL data.train=CONVERSATIONS.jsonl

-- "sum" is 1 for the right sum. "spread" differs between trajectories, so that every group has
-- advantages.
local params = r1.params { reward = "sum", sft = false }

local function reward(state, outcome)
  local last
  for digits in string.gmatch(outcome.text, "%d+") do last = digits end
  local correct = last == state.task.answer and 1 or 0
  return {
    outcome = params.reward == "sum" and correct or #outcome.text % 7,
    correct = { value = correct, weight = 0 },
  }
end

if params.sft then
  return r1.recipe {
    policy = { dtype = "f32" },
    data = { shuffle = false },
    trainer = r1.sft { batch_size = 16, lr = 1e-6, warmup = 0, final_lr = 1, betas = { 0.9, 0.999 } },
    checkpoint = { every = 0 },
  }
end

return r1.recipe {
  env = r1.env { max_steps = 1 },
  reward = reward,
  policy = { dtype = "f32" },
  data = { shuffle = false },
  sampling = { max_new_tokens = 48 },
  trainer = r1.grpo {
    steps = 30, group_size = 8, groups_per_step = 8, lr = 1e-5, clip = { 0.2, 0.2 },
    loss_agg = "seq-mean-token-mean",
  },
  checkpoint = { every = 0 },
}
