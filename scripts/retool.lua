--- Mathematics with a code interpreter, after ReTool (arXiv:2504.11536): programs in
--- <code>…</code>, results in <interpreter>…</interpreter>, the answer as \boxed{} in
--- <answer>…</answer>.
---
---   r1 run scripts/retool.lua
---   r1 run scripts/retool.lua policy.model=models/retool-sft params.instruct=true \
---     data.train=dapo.jsonl \
---     data.eval=aime24.jsonl env.max_steps=8 sampling.max_new_tokens=2048 trainer.lr=1e-6
---
--- r1-nano was fine-tuned for this format and gets no instruction; params.instruct explains it to
--- other models. scripts/retool_sft.lua is the cold start on the published demonstrations.
--- params.demonstrate adds a cold start on generated ones, for small models:
---
---   r1 run scripts/retool.lua policy.model=smollm2-135m params.demonstrate=true trainer.lr=2e-5

local problems = require("./lib/problems")
local tasks = require("@r1/tasks")

local params = r1.params {
  instruct = false, -- the prompt explains the format
  demonstrate = false, -- a cold start on demonstrations
}
local python = r1.tools.python { timeout = 5, memory = "512MiB", max_result_tokens = 512 }

local INSTRUCTION = [[
Solve the mathematics problem step by step. You may run Python programs: write a program between <code> and </code>, and stop
there. What it prints comes back between <interpreter> and </interpreter>, and you go on from it. Print every value that you
want to see; each program starts afresh. You may run several programs, one at a time.

Example of a program:
<code>
print(sum(range(1, 11)))
</code>
<interpreter>
55
</interpreter>

When you know the result, give it once, in this form, and stop:
<answer>
\boxed{the result}
</answer>

Problem:
]]

local env = r1.env {
  tools = { python },
  format = "retool", -- <code>…</code> -> <interpreter>…</interpreter>, in one assistant turn
  max_steps = 4, -- reaching this limit truncates; `done` terminates
  reset = function(task)
    local problem = (params.instruct and INSTRUCTION or "") .. tasks.question(task)
    return { task = task, calls = 0, failed = 0, messages = { r1.user(problem) } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls == 0 then
      -- A truncated reply is not an answer: a limit ended the task, not the policy.
      return { done = action.finish_reason ~= "length", truncated = action.finish_reason == "length" }
    end
    for _, result in ipairs(r1.call_tools(action.tool_calls, { prelude = state.task.prelude })) do
      state.calls = state.calls + 1
      if not result.ok then state.failed = state.failed + 1 end
      r1.push(state.messages, r1.observation(result)) -- not trained on
    end
    return { reward = 0 }
  end,
}

--- +1 for the correct answer, -1 otherwise; the other components are only logged.
local function reward(state, outcome)
  local answer = r1.last_boxed(r1.answer(outcome.text) or "")
  local correct = r1.math_equal(answer, tasks.references(state.task)[1])
  return {
    outcome = correct and 1 or -1,
    accuracy = { value = correct and 1 or 0, weight = 0 },
    calls = { value = state.calls, weight = 0 },
    tool_use = { value = state.calls > 0 and 1 or 0, weight = 0 },
  }
end

--- Half of the demonstrations guess, so that reinforcement learning has something to improve.
local function demonstration()
  local made = problems.problem()
  if math.random() < 0.5 then return problems.guess(made, made.answer + math.random(-300, 300)) end
  return problems.solution(made)
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = params.demonstrate and {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 100, batch_size = 16, lr = 2e-4, warmup = 10 },
  } or nil,
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = problems.problem },
    eval = r1.data.generate { count = 256, seed = 2, row = problems.problem },
  },
  sampling = { temperature = 1.0, max_new_tokens = 96 },
  trainer = r1.grpo { steps = 120, group_size = 8, groups_per_step = 16, lr = 2e-4, clip = { 0.2, 0.28 } },
  eval = { temperature = 1.0, limit = 256, accuracy = "accuracy" },
}
