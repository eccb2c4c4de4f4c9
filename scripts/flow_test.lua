--- Tests of scripts/flow.lua.

local script = r1.script("scripts/flow.lua")
local task = { problem = "What is 6 * 7?", answer = "42" }

test("each attempt is a separate conversation", function()
  local trajectory = script:reset { task = task }
  expect(trajectory:step("<code>\nprint(6 * 7)\n</code>").done):equals(false)
  expect(trajectory:observe()[2].role):equals("assistant")
  expect(trajectory:step("<answer>\\boxed{42}</answer>").done):equals(false)
  -- The second attempt does not see the first.
  expect(#trajectory:observe()):equals(1)
  local last = trajectory:step("<answer>\\boxed{42}</answer>")
  expect(last.done):equals(true)
  expect(trajectory:reward()):near(1.5)
end)

test("a wrong attempt has a negative reward", function()
  local trajectory = script:reset { task = task }
  expect(trajectory:step("<answer>\\boxed{41}</answer>").reward):near(-0.5)
  expect(trajectory:step("<answer>\\boxed{42}</answer>").reward):near(0.5)
  expect(trajectory:reward()):near(0)
end)

test("a limit ends the trajectory", function()
  local short = r1.script("scripts/flow.lua", { settings = { ["env.max_steps"] = 1 } })
  local trajectory = short:reset { task = task }
  local only = trajectory:step("<answer>\\boxed{42}</answer>")
  expect(only.status):equals("truncated")
  expect(only.truncated_by):equals("max_steps")
  expect(trajectory:reward()):near(0.5)
end)
