--- {{name}}: an environment of its own: what it keeps, what a reply does, what the policy is shown.
---
--- A quiz of two questions. A reply may run a program, which costs a little, or answer; a wrong answer ends the quiz.
---
---   r1 check {{file}}
---   r1 repl {{file}}
---   r1 run {{file}}

local python = r1.tools.python { timeout = 5, memory = "256MiB" }

local env = r1.env {
  tools = { python },
  format = "retool", -- r1-nano writes its programs in <code>…</code>; leave this out for other models
  max_steps = 6, -- reaching it truncates; `done` terminates
  -- A state is plain data, and a function of the task and the seed.
  reset = function(task)
    return { questions = task.questions, right = 0, programs = 0, messages = { r1.user(task.questions[1].problem) } }
  end,
  -- Whatever the policy writes must end in an observation or in `done`, never in an error.
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls > 0 then
      for _, result in ipairs(r1.call_tools(action.tool_calls)) do
        r1.push(state.messages, r1.observation(result)) -- never trained on
      end
      state.programs += #action.tool_calls
      return { reward = -0.02 * #action.tool_calls }
    end
    local question = state.questions[state.right + 1]
    local answer = r1.last_boxed(action.text) or string.match(action.text, "(%-?%d+)%D*$")
    if answer == nil or not r1.math_equal(answer, question.answer) then return { done = true } end
    state.right += 1
    -- Rewards on the way: the policy does not have to get to the end to learn something.
    if state.right == #state.questions then return { reward = 0.5, done = true } end
    r1.push(state.messages, r1.user(state.questions[state.right + 1].problem))
    return { reward = 0.5 }
  end,
}

--- Nothing at the end but parts for the logs: the steps have earned everything.
local function reward(state, outcome)
  return {
    finished = { value = state.right == #state.questions and 1 or 0, weight = 0 },
    right = { value = state.right, weight = 0 },
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

local function task() return { questions = { question(), question() } } end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = task },
    eval = r1.data.generate { count = 64, seed = 2, row = task },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 12, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "finished" },
}
