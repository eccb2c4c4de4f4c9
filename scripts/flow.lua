--- An agent flow: the recipe runs its own loop over `policy:generate` instead of `reset` and
--- `step`. Here a trajectory has two independent attempts at one problem, each a separate
--- conversation with a code interpreter. Each attempt is rewarded at its last reply, with a bonus
--- if both have the correct answer.
---
---   r1 run scripts/flow.lua
---   r1 test scripts/flow_test.lua

local problems = require("./lib/problems")

local ATTEMPTS, TURNS = 2, 4

--- One attempt: alternates replies and programs until a reply has no program. Returns the answer,
--- or nil.
local function attempt(task, policy)
  local messages = { r1.user(task.problem) }
  for _ = 1, TURNS do
    local reply = policy:generate(messages)
    r1.push(messages, r1.assistant(reply))
    if #reply.tool_calls == 0 then return r1.last_boxed(r1.answer(reply.text) or "") end
    for _, result in ipairs(r1.call_tools(reply.tool_calls, { prelude = task.prelude })) do
      r1.push(messages, r1.observation(result))
    end
  end
  return nil
end

local function flow(task, policy)
  local correct = 0
  for _ = 1, ATTEMPTS do
    local answer = attempt(task, policy)
    local right = r1.math_equal(answer, task.answer)
    -- The reward of the attempt's last reply. For an earlier reply: policy:reward(value, step).
    policy:reward(right and 0.5 or -0.5)
    if right then correct = correct + 1 end
  end
  local agreed = correct == ATTEMPTS
  return { reward = agreed and 0.5 or 0, parts = { accuracy = correct / ATTEMPTS, agreed = agreed and 1 or 0 } }
end

return r1.recipe {
  env = r1.env {
    tools = { r1.tools.python { timeout = 5, memory = "512MiB" } },
    format = "retool",
    max_steps = ATTEMPTS * TURNS,
    flow = flow,
  },
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = problems.problem },
    eval = r1.data.generate { count = 64, seed = 2, row = problems.problem },
  },
  sampling = { temperature = 1.0, max_new_tokens = 96 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 8, lr = 2e-4, clip = { 0.2, 0.28 } },
  eval = { temperature = 1.0, limit = 64, accuracy = "accuracy" },
}
