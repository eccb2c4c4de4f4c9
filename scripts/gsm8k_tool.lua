--- GSM8K (arXiv:2110.14168) with tools, after Agent-R1's GSM8K example: a calculator, and a tool
--- that says whether an answer is right. By default products that r1-nano can't work out without
--- them.
---
--- With params.solutions, a file of GSM8K with its annotated solutions, the tool calls have the
--- form of the annotations (<<48/2>>), and the cold start learns from the solutions.
---
---   r1 run scripts/gsm8k_tool.lua
---   r1 run scripts/gsm8k_tool.lua policy.model=smollm2-135m \
---     params.solutions=../data/gsm8k/train.jsonl data.train=data/gsm8k/train.jsonl \
---     data.eval=data/gsm8k/test.jsonl sampling.max_new_tokens=128 env.max_steps=12 \
---     policy.max_context=1024 cold_start.trainer.lr=2e-4 trainer.lr=1e-5
---   r1 run scripts/gsm8k_tool.lua policy.model=Qwen/Qwen3-4B-Instruct-2507 \
---     data.train.hf=openai/gsm8k data.train.subset=main sampling.max_new_tokens=2048

local annotated = require("./lib/annotated")
local calculator = require("@r1/calculator")
local demonstrations = require("@r1/demonstrations")
local problems = require("./lib/problems")
local rewards = require("@r1/rewards")

local params = r1.params {
  check = true, -- whether there is the tool check_answer; not with solutions
  solutions = "", -- a file with GSM8K's columns; relative to this script
}
local solutions = params.solutions ~= "" and r1.resource(params.solutions) or nil
local SYSTEM = "Solve the problem. Write the final number after ####."

local tools = { calculator.tool() }
if params.check and not solutions then
  tools[2] = r1.tool {
    name = "check_answer",
    description = "Says whether a number is the answer.",
    parameters = { answer = "string" },
    run = function(arguments, call)
      -- In a chat there is no reference answer.
      if call.state.task.answer == nil then return "the answer is not known" end
      return rewards.gsm8k(arguments.answer, call.state.task.answer) == 1 and "correct" or "incorrect"
    end,
  }
end

local function reward(state, outcome)
  local checks = 0
  for _, message in ipairs(state.messages) do
    if message.role == "tool" and message.name == "check_answer" then checks += 1 end
  end
  return {
    outcome = rewards.gsm8k(outcome.text, state.task.answer, { strict = true }),
    calls = { value = outcome.calls, weight = 0 },
    checks = { value = checks, weight = 0 },
  }
end

local SHAPES = { "product", "sold", "piles" }

--- A problem in GSM8K's columns.
local function row()
  local made = problems.shapes[SHAPES[math.random(#SHAPES)]]()
  local expression = string.match(made.plan[1].code, "print%((.*)%)")
  return { question = made.problem, answer = `{expression} = {made.answer}\n#### {made.answer}`, expression = expression, value = made.answer }
end

--- Half of the demonstrations guess, three in ten use the calculator, the others also check.
local function demonstration()
  local task, kind = row(), math.random()
  local messages = { r1.user(task.question) }
  if kind > 0.5 then
    r1.push(messages, demonstrations.call("calculator", { expression = task.expression }))
    r1.push(messages, demonstrations.result("calculator", tostring(task.value)))
  end
  if kind > 0.8 and params.check then
    r1.push(messages, demonstrations.call("check_answer", { answer = tostring(task.value) }))
    r1.push(messages, demonstrations.result("check_answer", "correct"))
  end
  local answer = kind > 0.5 and task.value or task.value + math.random(-300, 300)
  r1.push(messages, r1.assistant(`#### {answer}`))
  return demonstrations.row(SYSTEM, tools, messages)
end

local function solved(index) return annotated.demonstration(solutions[index], SYSTEM, tools) end

return r1.recipe {
  env = r1.env {
    tools = tools,
    format = solutions and annotated.format or nil,
    system = SYSTEM,
    max_steps = 5,
    call_rewards = { malformed = -0.1 },
  },
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = {
      train = r1.data.generate {
        count = solutions and #solutions or 20000,
        seed = 3,
        row = solutions and solved or demonstration,
      },
    },
    trainer = r1.sft { steps = 1500, batch_size = 16, lr = 1e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = row },
    eval = r1.data.generate { count = 256, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, limit = 256, accuracy = "outcome" },
}
