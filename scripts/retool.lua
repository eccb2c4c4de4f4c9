--- Mathematics with a code interpreter, after ReTool (arXiv:2504.11536): programs in
--- <code>…</code>, results in <interpreter>…</interpreter>, the answer as \boxed{} in
--- <answer>…</answer>.
---
---   r1 run scripts/retool.lua
---
--- r1-nano was fine-tuned for this format and gets no instruction. For other models:
--- scripts/retool_instruct.lua.

local problems = require("./lib/problems")
local python = r1.tools.python { timeout = 5, memory = "512MiB" }

local env = r1.env {
  tools = { python },
  format = "retool", -- <code>…</code> -> <interpreter>…</interpreter>, in one assistant turn
  max_steps = 4, -- reaching this limit truncates; `done` terminates
  reset = function(task)
    return { task = task, calls = 0, failed = 0, messages = { r1.user(task.problem) } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls == 0 then return { done = true } end
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
  local correct = answer ~= nil and r1.math_equal(answer, state.task.answer)
  return {
    outcome = correct and 1 or -1,
    accuracy = { value = correct and 1 or 0, weight = 0 },
    calls = { value = state.calls, weight = 0 },
    tool_use = { value = state.calls > 0 and 1 or 0, weight = 0 },
  }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = problems.problem },
    eval = r1.data.generate { count = 256, seed = 2, row = problems.problem },
  },
  sampling = { temperature = 1.0, max_new_tokens = 96 },
  trainer = r1.grpo { steps = 120, group_size = 8, groups_per_step = 16, lr = 2e-4, clip = { 0.2, 0.28 } },
  eval = { temperature = 1.0, limit = 256, accuracy = "accuracy" },
}
