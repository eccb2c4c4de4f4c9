--- Tests of {{file}}: r1 test {{test}}

local script = r1.script("{{script}}")
local task = { problem = "Ana has 43 boxes with 58 pens in each. How many pens in all?", answer = "2494" }

test("a right answer has reward 1 and ends the task", function()
  for _, reply in ipairs { "<answer>\\boxed{2494}</answer>", "It is 2494." } do
    local trajectory = script:reset { task = task }
    local step = trajectory:step(reply)
    expect(step.reward):near(1)
    expect(step.status):equals("terminated")
    local reward, parts = trajectory:reward()
    expect(reward):near(1)
    expect(parts):equals { solved = 1, wrong = 0, programs = 0 }
  end
end)

test("a program has a small cost and a result", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:call("python", { code = "print(43*58)" })
  expect(step.tools[1].output):equals("2494")
  expect(step.reward):near(-0.02)
  expect(step.done):equals(false)
end)

test("a wrong answer has a larger cost, and the second one ends the task", function()
  for _, reply in ipairs { "2495", "", "no idea" } do
    local trajectory = script:reset { task = task }
    local step = trajectory:step(reply)
    expect(step.reward):near(-0.2)
    expect(step.done):equals(false)
    expect(trajectory:step(reply).done):equals(true)
    local reward, parts = trajectory:reward()
    expect(reward):near(-0.4)
    expect(parts.wrong):equals(2)
  end
end)
