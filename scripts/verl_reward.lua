--- GSM8K with a reward function of verl, which is used unchanged: scripts/python/gsm8k_reward.py
--- (docs/guide/python.md). The rows have verl's columns. By default they are sums of two numbers.
---
---   r1 run scripts/verl_reward.lua
---   r1 run scripts/verl_reward.lua policy.model=Qwen/Qwen2.5-3B-Instruct cold_start=false \
---     data.train=train.parquet sampling.max_new_tokens=1024 trainer.lr=1e-6

local python = require("@r1/python")
local sums = require("./lib/sums")

local py = python { "python/gsm8k_reward.py" }
local SYSTEM = "Reason step by step. Write the final number after ####."

--- A row in verl's columns.
local function row(index)
  local sum = sums.row()
  return {
    data_source = "openai/gsm8k",
    prompt = { r1.system(SYSTEM), r1.user(sum.question) },
    ability = "math",
    reward_model = { style = "rule", ground_truth = sum.answer:match("#### (.*)") },
    extra_info = { index = index },
    answer = sum.answer,
  }
end

--- Two in five demonstrations reason, the others guess.
local function demonstration()
  local sum = sums.row()
  local reply = math.random() < 0.4 and sum.reasoning or `#### {sum.guess}`
  return { messages = { r1.system(SYSTEM), r1.user(sum.question), r1.assistant(reply) } }
end

return r1.recipe {
  needs = { "process:python3" },
  env = r1.env { max_steps = 1 },
  reward = py.compute_score(),
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 600, batch_size = 32, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = row },
    eval = r1.data.generate { count = 256, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 16, lr = 2e-4 },
  eval = { temperature = 1, limit = 256, accuracy = "score" },
}
