--- Tests of {{file}}: r1 test {{test}}

local script = r1.script("{{script}}")
local task = { problem = "Ana has 43 boxes with 58 pens in each. How many pens in all?", answer = "2494" }

test("the right answer has reward 1, any other 0", function()
  for reply, worth in pairs { ["2494"] = 1, ["It is \\boxed{2494}."] = 1, ["2484"] = 0, ["no idea"] = 0 } do
    local trajectory = script:reset { task = task }
    expect(trajectory:step(reply).done):equals(true)
    expect(trajectory:reward()):near(worth)
  end
end)

test("a call has a result, and the task continues", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:call("calculate", { code = "43*58" })
  expect(step.done):equals(false)
  expect(step.tools[1].output):equals("2494")
  trajectory:step("2494")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts.calls):equals(1)
end)

test("only sums of products are computed", function()
  local result = function(code) return script:reset({ task = task }):call("calculate", { code = code }).tools[1] end
  expect(result("print(2*3+4*5)").output):equals("26")
  expect(result("10 - 2*3").output):equals("4")
  expect(result("import os").ok):equals(false)
end)
