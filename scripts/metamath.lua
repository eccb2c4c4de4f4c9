--- MetaMathQA with further attempts, as in RAGEN (arXiv:2504.20073): the k-th attempt that is right
--- earns 1 / 2^(k-1) (docs/guide/recipes/metamath.md).
---
---   r1 run scripts/metamath.lua
---   r1 run scripts/metamath.lua data.train.hf=meta-math/MetaMathQA cold_start=false \
---     policy.model=Qwen/Qwen2.5-1.5B-Instruct sampling.max_new_tokens=400 trainer.lr=1e-6

local rewards = require("@r1/rewards")

local SYSTEM = "Solve the problem. Answer <answer>NUMBER</answer>. After a wrong answer you may try again."
local ATTEMPTS = 5

--- The reference, after `The answer is:` in `response` (MetaMathQA) or `####` in `answer` (GSM8K).
local function reference(task)
  if task.response then return string.match(task.response, "The answer is:%s*(.-)%s*$") end
  return task.answer and rewards.final_number(task.answer, { strict = true })
end

local env = r1.env {
  format = "answer",
  max_steps = ATTEMPTS,
  reset = function(task)
    local wanted = reference(task)
    r1.reference(wanted, "the row has no answer, after `The answer is:` in `response` or after `####` in `answer`")
    local messages = { r1.system(SYSTEM), r1.user(task.query or task.question) }
    return { wanted = wanted, attempts = 0, solved = false, messages = messages }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    local answer = r1.answer(action.text)
    state.solved = r1.math_equal(answer, state.wanted)
    state.attempts += 1
    local format = answer == nil and -0.1 or 0
    if state.solved then
      return { reward = 1 / 2 ^ (state.attempts - 1), parts = { answer = 1 / 2 ^ (state.attempts - 1) }, done = true }
    end
    r1.push(state.messages, r1.user("Incorrect. Please think again."))
    return { reward = format, parts = { format = format } }
  end,
}

local function reward(state)
  return {
    solved = { value = state.solved and 1 or 0, weight = 0 },
    first = { value = state.solved and state.attempts == 1 and 1 or 0, weight = 0 },
    attempts = { value = state.attempts, weight = 0 },
  }
end

--- A small stand-in with the columns of MetaMathQA: sums that r1-nano can learn.
local function problem()
  local a, b = math.random(6), math.random(6)
  return {
    query = `Ana has {a} pens and buys {b} more. How many pens in all?`,
    response = `{a} + {b} = {a + b}. The answer is: {a + b}`,
    type = "generated",
  }
end

--- A weak player: half of its answers are off by a little, also when it tries again.
local function demonstration()
  local row = problem()
  local answer = tonumber(reference(row))
  local messages = { r1.system(SYSTEM), r1.user(row.query) }
  for attempt = 1, ATTEMPTS do
    local given = math.random() < 0.4 and answer or answer + math.random(-2, 2)
    r1.push(messages, r1.assistant(`<answer>{given}</answer>`))
    if given == answer or attempt == ATTEMPTS then break end
    r1.push(messages, r1.user("Incorrect. Please think again."))
  end
  return { messages = messages, format = "answer" }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 800, batch_size = 32, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = problem },
    eval = r1.data.generate { count = 256, seed = 2, row = problem },
  },
  sampling = { max_new_tokens = 16 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 16, lr = 3e-4, filter = { keep = 0.5 } },
  eval = { temperature = 1, limit = 256, accuracy = "first" },
}
