--- {{name}}: programs that are tried out. The policy may run Python as often as it likes; its last program is run with
--- tests that it has not seen. What a test expects stays in this script: the program shares a process with whatever is
--- run behind it, so it could make an `assert` there pass, but it cannot know the right answer.
---
---   r1 check {{file}}
---   r1 run {{file}}

local python = r1.tools.python { timeout = 5, memory = "512MiB" }

local env = r1.env {
  tools = { python },
  max_steps = 4,
  system = "Try your program out, then give it whole in a block that begins with ```python and ends with ```.",
}

--- The program in the last block.
local function program(text)
  local last
  for block in string.gmatch(text, "```python\n(.-)```") do last = block end
  return last
end

--- The share of the tests that pass, and a little for a program at all. Each test runs in a process of its own: the
--- program is the prelude, of which no output is kept, and the value of the call is what the process prints.
local function reward(state, outcome)
  local code = program(outcome.text)
  if code == nil then return { tests = 0, form = { value = 0, weight = 0.1 } } end
  local calls = {}
  for index, check in ipairs(state.task.tests) do
    calls[index] = { name = "python", arguments = { code = check.call } }
  end
  local passed = 0
  for index, result in ipairs(r1.call_tools(calls, { prelude = code })) do
    if result.ok and result.content == state.task.tests[index].gives then passed = passed + 1 end
  end
  return { tests = passed / #calls, form = { value = 1, weight = 0.1 } }
end

local TASKS = {
  { problem = "Write a function double(x) that gives twice x.", tests = { { call = "double(2)", gives = "4" }, { call = "double(-1)", gives = "-2" } } },
  { problem = "Write a function largest(xs) that gives the largest of a list.", tests = { { call = "largest([3, 9, 2])", gives = "9" }, { call = "largest([-4])", gives = "-4" } } },
  { problem = "Write a function turned(s) that turns a text around.", tests = { { call = "turned('abc')", gives = "'cba'" }, { call = "turned('')", gives = "''" } } },
}

local function row(index) return TASKS[(index - 1) % #TASKS + 1] end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 300, row = row },
    eval = r1.data.generate { count = #TASKS, row = row },
  },
  sampling = { max_new_tokens = 160 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 4, lr = 1e-4 },
}
