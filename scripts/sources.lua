--- Two environments and two datasets in one run: word problems with a code interpreter, and small
--- sums without one. Rows of a dataset run in the environment named by the dataset; metrics and
--- evaluations are per dataset.
---
---   r1 run scripts/sources.lua
---   r1 run scripts/sources.lua data.train.words.weight=3       three word problems for each sum

local problems = require("./lib/problems")

--- 3 + 4 and similar sums, which need no program.
local function sum(index)
  local a, b = math.random(1, 9), math.random(1, 9)
  return { problem = string.format("What is %d + %d?", a, b), answer = a + b }
end

local function words(count, seed)
  return r1.data.generate { count = count, seed = seed, row = problems.problem, env = "code" }
end

local function sums(count, seed)
  return r1.data.generate { count = count, seed = seed, row = sum, env = "mental" }
end

return r1.recipe {
  envs = {
    code = r1.env {
      tools = { r1.tools.python { timeout = 5, memory = "512MiB" } },
      format = "retool",
      max_steps = 4,
      step = function(state, action)
        r1.push(state.messages, r1.assistant(action))
        if #action.tool_calls == 0 then return { done = true } end
        for _, result in ipairs(r1.call_tools(action.tool_calls, { prelude = state.task.prelude })) do
          r1.push(state.messages, r1.observation(result))
        end
        return { reward = 0 }
      end,
    },
    -- No tools, one reply: a program is a wrong answer here.
    mental = r1.env {
      format = "retool",
      max_steps = 1,
      step = function(state, action)
        r1.push(state.messages, r1.assistant(action))
        return { done = true }
      end,
    },
  },
  reward = function(state, outcome)
    local answer = r1.last_boxed(r1.answer(outcome.text) or "")
    local correct = r1.math_equal(answer, state.task.answer)
    return { outcome = correct and 1 or -1, accuracy = { value = correct and 1 or 0, weight = 0 } }
  end,
  policy = { model = "r1-nano" },
  data = {
    train = { words = words(100000, 1), sums = sums(10000, 1) },
    eval = { words = words(64, 2), sums = sums(64, 2) },
  },
  sampling = { temperature = 1.0, max_new_tokens = 96 },
  trainer = r1.grpo { steps = 60, group_size = 8, groups_per_step = 16, lr = 2e-4, clip = { 0.2, 0.28 } },
  eval = { temperature = 1.0, limit = 64, accuracy = "accuracy" },
}
