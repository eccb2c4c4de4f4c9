--- Tests of {{file}}: r1 test {{test}}

local script = r1.script("{{script}}")
-- {{name}}_pages.jsonl has a note of Ana with 4213 in it.
local task = { problem = "Ana left a note. What is the result?", about = "Ana", answer = "4213" }

test("a search finds the page, and the right answer has reward 1", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:call("search", { code = "print(note)" })
  expect(step.tools[1].output):equals("4213")
  trajectory:step("<answer>\\boxed{4213}</answer>")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts.searches):equals(1)
end)

test("a wrong answer in the right format has a small reward", function()
  local trajectory = script:reset { task = task }
  trajectory:step("<answer>\\boxed{4214}</answer>")
  expect(trajectory:reward()):near(0.1)
end)

test("an empty search is a result, not an error", function()
  local step = script:reset({ task = task }):call("search", { code = "xyzzy" })
  expect(step.tools[1].ok):equals(false)
  expect(step.tools[1].output):contains("nothing was found")
end)
