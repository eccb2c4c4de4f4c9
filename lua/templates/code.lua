--- {{name}}: programs that are graded by running them. A program runs in the sandbox; the output of
--- the last one that works is compared with a result that is hidden from the policy.
---
---   r1 check {{file}}
---   r1 run {{file}}

local python = r1.tools.python { timeout = 5, memory = "256MiB" }

local env = r1.env {
  tools = { python },
  format = "retool", -- the format of r1-nano; leave this out for other models
  max_steps = 3, -- reaching this limit truncates
  reset = function(task) return { task = task, messages = { r1.user(task.problem) } } end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls == 0 then return { done = true } end
    local result = r1.call_tools(action.tool_calls)[1]
    r1.push(state.messages, r1.observation(result))
    -- The last program that works counts; the policy may correct one that fails.
    if result.ok then state.printed = result.content end
    return {}
  end,
}

--- 1 for a program that prints the correct result, 0.2 for one that runs.
local function reward(state, outcome)
  local ran = state.printed ~= nil
  local lines = string.split(state.printed or "", "\n")
  local correct = r1.math_equal(ran and lines[#lines] or nil, state.task.answer)
  return { correct = correct and 1 or 0, runs = { value = ran and 1 or 0, weight = correct and 0 or 0.2 } }
end

local THINGS = { "apples", "books", "cards", "eggs", "lamps", "pens", "rings", "seeds" }

local function exercise()
  local a, b, c = math.random(32, 98), math.random(32, 98), math.random(12, 98)
  local thing = THINGS[math.random(#THINGS)]
  if math.random() < 0.5 then
    return { problem = `Ana has {a} boxes with {b} {thing} in each. How many {thing} in all?`, answer = tostring(a * b) }
  end
  return {
    problem = `Bo buys {a} crates of {b} {thing} and sells {c} {thing}. How many {thing} are left?`,
    answer = tostring(a * b - c),
  }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = exercise },
    eval = r1.data.generate { count = 100, seed = 2, row = exercise },
  },
  sampling = { max_new_tokens = 48 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 12, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "correct" },
}
