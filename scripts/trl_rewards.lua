--- Sums of two numbers with reward functions of TRL, which are used unchanged:
--- scripts/python/sum_rewards.py (docs/guide/python.md). Rows are conversational, as in TRL:
--- `prompt` is
--- a list of messages, and completions are lists of messages.
---
---   r1 run scripts/trl_rewards.lua
---   r1 run scripts/trl_rewards.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false \
---     trainer.lr=1e-6

local python = require("@r1/python")
local sums = require("./lib/sums")

local py = python { "python/sum_rewards.py" }
local SYSTEM = "Reason step by step. Write the final number after ####."

local function row()
  local sum = sums.row()
  return {
    prompt = { r1.system(SYSTEM), r1.user(sum.question) },
    answer = tonumber(sum.answer:match("#### (.*)")),
    reasoning = sum.reasoning,
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
  reward = py.reward_funcs { "accuracy", "steps", "brevity", weights = { 1, 0.2, 0.1 } },
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
  eval = { temperature = 1, limit = 256, accuracy = "accuracy" },
}
