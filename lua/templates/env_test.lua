--- What {{file}} promises: r1 test {{test}}

local script = r1.script("{{beside}}")
local task = {
  questions = {
    { problem = "Ana has 43 boxes with 58 pens in each. How many pens in all?", answer = "2494" },
    { problem = "Bo buys 40 crates of 50 eggs and sells 12 eggs. How many eggs are left?", answer = "1988" },
  },
}

test("every right answer is worth a half, and the second one ends the quiz", function()
  local trajectory = script:reset { task = task }
  local first = trajectory:step("<answer>\\boxed{2494}</answer>")
  expect(first.reward):near(0.5)
  expect(first.done):equals(false)
  local messages = trajectory:observe()
  expect(messages[#messages].content):contains("40 crates")
  expect(trajectory:step("It is 1988.").status):equals("terminated")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts):equals { finished = 1, right = 2, programs = 0 }
end)

test("a program costs a little, and is answered", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:call("python", { code = "print(43*58)" })
  expect(step.tools[1].output):equals("2494")
  expect(step.reward):near(-0.02)
  expect(step.done):equals(false)
end)

test("a wrong answer ends the quiz", function()
  for _, reply in ipairs { "2495", "", "no idea" } do
    local trajectory = script:reset { task = task }
    expect(trajectory:step(reply).done):equals(true)
    expect(trajectory:reward()):near(0)
  end
end)
