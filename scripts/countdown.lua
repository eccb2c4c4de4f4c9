--- Countdown, after TinyZero and RAGEN (arXiv:2504.20073): an expression of the given numbers whose
--- value is the target, in one reply (docs/guide/recipes/countdown.md).
---
---   r1 run scripts/countdown.lua
---   r1 run scripts/countdown.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false

local countdown = require("@r1/games/countdown")

local SYSTEM = "Reach the target with + and -. <answer>5 + 3 - 2</answer>"

--- A row: three numbers, and a target that they reach in this order with + and -. A fifth of all
--- tasks is held out.
local function task(held_out)
  while true do
    local numbers = { math.random(1, 9), math.random(1, 9), math.random(1, 9) }
    local text, target = tostring(numbers[1]), numbers[1]
    for k = 2, 3 do
      local plus = math.random() < 0.5
      text = `{text} {plus and "+" or "-"} {numbers[k]}`
      target += plus and numbers[k] or -numbers[k]
    end
    local fifth = (numbers[1] + 2 * numbers[2] + 3 * numbers[3] + target) % 5 == 0
    if target > 0 and fifth == held_out then
      local prompt = `{table.concat(numbers, " ")} = {target}`
      return { numbers = numbers, target = target, prompt = prompt, answer = text }
    end
  end
end

--- Answers to several tasks: one in two solves its task, the others have random signs.
local function demonstration()
  local messages = { r1.system(SYSTEM) }
  for _ = 1, 8 do
    local row = task(false)
    local text = row.answer
    if math.random() < 0.5 then
      text = string.gsub(text, "[+-]", function() return math.random() < 0.5 and "+" or "-" end)
    end
    r1.push(messages, r1.user(row.prompt))
    r1.push(messages, r1.assistant(`<answer>{text}</answer>`))
  end
  return { messages = messages, format = "answer" }
end

--- RAGEN's rewards: 1 for a solution, 0.1 for an expression with the right numbers.
local function reward(state, outcome)
  local grade = countdown.grade(r1.answer(outcome.text), state.task.numbers, state.task.target)
  return {
    solved = grade.solved and 1 or 0,
    numbers = { value = grade.numbers and not grade.solved and 1 or 0, weight = 0.1 },
    parsed = { value = grade.parsed and 1 or 0, weight = 0 },
  }
end

return r1.recipe {
  env = r1.env {
    system = SYSTEM,
    format = "answer",
    max_steps = 1,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      return { done = true }
    end,
  },
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 500, batch_size = 24, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = function() return task(false) end },
    eval = r1.data.generate { count = 256, seed = 2, row = function() return task(true) end },
  },
  sampling = { max_new_tokens = 16 },
  trainer = r1.grpo { steps = 150, group_size = 8, groups_per_step = 16, lr = 2e-4 },
  eval = { temperature = 1, limit = 256, accuracy = "solved" },
}
