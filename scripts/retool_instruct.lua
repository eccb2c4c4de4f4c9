--- ReTool (arXiv:2504.11536) for a model that was not fine-tuned for its format: the prompt
--- explains <code>, <interpreter> and <answer>\boxed{…}</answer>. scripts/retool.lua is the same
--- task for r1-nano, which needs no instruction.
---
---   r1 run scripts/retool_instruct.lua data.train=dapo.jsonl data.eval=aime24.jsonl
---   r1 run scripts/retool_instruct.lua policy.model=Qwen/Qwen2.5-7B-Instruct env.max_steps=12
---
--- Rows have the columns `problem` and `answer`; without a file the problems are those of
--- scripts/lib/problems.lua.

local problems = require("./lib/problems")
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
</answer>]]

local env = r1.env {
  tools = { python },
  format = "retool", -- <code>…</code> -> <interpreter>…</interpreter>, in one assistant turn
  max_steps = 8,
  max_tokens = 8192,
  call_rewards = { malformed = -0.1 },
  reset = function(task)
    local problem = r1.user(INSTRUCTION .. "\n\nProblem:\n" .. task.problem)
    return { task = task, messages = { problem }, programs = 0, failed = 0 }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls == 0 then
      -- A truncated reply is not an answer: a limit ended the task, not the policy.
      return { done = action.finish_reason ~= "length", truncated = action.finish_reason == "length" }
    end
    for _, result in ipairs(r1.call_tools(action.tool_calls, { prelude = state.task.prelude })) do
      state.programs = state.programs + 1
      if not result.ok then state.failed = state.failed + 1 end
      r1.push(state.messages, r1.observation(result))
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
    answered = { value = answer and 1 or 0, weight = 0 },
    programs = { value = state.programs, weight = 0 },
    failed_programs = { value = state.failed, weight = 0 },
  }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "Qwen/Qwen2.5-1.5B-Instruct" },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = problems.problem },
    eval = r1.data.generate { count = 256, seed = 2, row = problems.problem },
  },
  sampling = { temperature = 1.0, max_new_tokens = 2048 },
  trainer = r1.grpo { steps = 200, group_size = 8, groups_per_step = 16, lr = 1e-6, clip = { 0.2, 0.28 } },
  eval = { temperature = 1.0, limit = 256, accuracy = "accuracy" },
}
