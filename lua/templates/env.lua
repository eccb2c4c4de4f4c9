--- {{name}}: an environment with its own state, steps and observations.
---
--- A question with two attempts. A reply may run a program, which has a small cost, or answer; a
--- wrong answer costs more and leaves the second attempt.
---
---   r1 check {{file}}
---   r1 repl {{file}}
---   r1 run {{file}}

local python = r1.tools.python { timeout = 5, memory = "256MiB" }

local TRIES = 2

local env = r1.env {
  tools = { python },
  format = "retool", -- the format of r1-nano; leave this out for other models
  max_steps = 6, -- reaching this limit truncates; `done` terminates
  -- The state is plain data, and a function of the task and the seed.
  reset = function(task)
    return { answer = task.answer, solved = false, wrong = 0, programs = 0, messages = { r1.user(task.problem) } }
  end,
  -- Any reply must lead to an observation or to `done`, never to an error.
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls > 0 then
      for _, result in ipairs(r1.call_tools(action.tool_calls)) do
        r1.push(state.messages, r1.observation(result)) -- not trained on
      end
      state.programs += #action.tool_calls
      return { reward = -0.02 * #action.tool_calls }
    end
    local answer = r1.last_boxed(action.text) or string.match(action.text, "(%-?%d+)%D*$")
    if r1.math_equal(answer, state.answer) then
      state.solved = true
      return { reward = 1, done = true }
    end
    -- Step rewards: each step gets the reward of its action.
    state.wrong += 1
    if state.wrong < TRIES then r1.push(state.messages, r1.user("That is wrong. Try again.")) end
    return { reward = -0.2, done = state.wrong == TRIES }
  end,
}

--- The outcome has only components for the logs: the steps have all the reward.
local function reward(state, outcome)
  return {
    solved = { value = state.solved and 1 or 0, weight = 0 },
    wrong = { value = state.wrong, weight = 0 },
    programs = { value = state.programs, weight = 0 },
  }
end

local function question()
  local a, b, c = math.random(32, 98), math.random(32, 98), math.random(12, 98)
  if math.random() < 0.5 then
    return { problem = `Ana has {a} boxes with {b} pens in each. How many pens in all?`, answer = tostring(a * b) }
  end
  return {
    problem = `Bo buys {a} crates of {b} eggs and sells {c} eggs. How many eggs are left?`,
    answer = tostring(a * b - c),
  }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = question },
    eval = r1.data.generate { count = 64, seed = 2, row = question },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 12, lr = 3e-4 },
  eval = { temperature = 1, accuracy = "solved" },
}
