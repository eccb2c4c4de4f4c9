--- GSM8K (arXiv:2110.14168) in one step: the single-step baseline of Agent-R1 and verl. By default
--- sums of two numbers that r1-nano can reason about.
---
---   r1 run scripts/gsm8k.lua
---   r1 run scripts/gsm8k.lua policy.model=Qwen/Qwen2.5-3B-Instruct data.train.hf=openai/gsm8k \
---     data.train.subset=main sampling.max_new_tokens=1024

local rewards = require("@r1/rewards")
local sums = require("./lib/sums")

local SYSTEM = "Reason step by step. Write the final number after ####."

local function reward(state, outcome)
  local correct = rewards.gsm8k(outcome.text, state.task.answer, { strict = true })
  return {
    outcome = correct,
    answered = { value = rewards.final_number(outcome.text, { strict = true }) and 1 or 0, weight = 0 },
    reasoned = { value = outcome.text:find("=", 1, true) and 1 or 0, weight = 0 },
  }
end

--- Two in five demonstrations reason, the others guess.
local function demonstration()
  local row = sums.row()
  local reply = math.random() < 0.4 and row.reasoning or `#### {row.guess}`
  return { messages = { r1.system(SYSTEM), r1.user(row.question), r1.assistant(reply) } }
end

return r1.recipe {
  env = r1.env { system = SYSTEM, max_steps = 1 },
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 600, batch_size = 32, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = sums.row },
    eval = r1.data.generate { count = 256, seed = 2, row = sums.row },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 16, lr = 2e-4 },
  eval = { temperature = 1, limit = 256, accuracy = "outcome" },
}
