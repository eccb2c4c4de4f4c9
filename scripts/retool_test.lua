--- Tests of scripts/retool.lua.

local script = r1.script("scripts/retool.lua")
local task = { problem = "What is 6 * 7?", answer = "42" }

test("the right answer has reward 1, any other -1", function()
  for reply, worth in pairs { ["<answer>\\boxed{42}</answer>"] = 1, ["<answer>\\boxed{41}</answer>"] = -1, ["42"] = -1 } do
    local trajectory = script:reset { task = task }
    expect(trajectory:step(reply).done):equals(true)
    expect(trajectory:reward()):near(worth)
  end
end)

test("programs are run, counted and answered in the same turn", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:step("<code>\nprint(6 * 7)\n</code>")
  expect(step.tools[1].output):equals("42")
  expect(step.done):equals(false)
  local messages = trajectory:observe()
  expect(messages[#messages]):equals { role = "tool", name = "python", content = "42" }
  trajectory:step("<code>\n1 / 0\n</code>")
  expect(trajectory:state().calls):equals(2)
  expect(trajectory:state().failed):equals(1)
  trajectory:step("<answer>\\boxed{42}</answer>")
  local _, parts = trajectory:reward()
  expect(parts):equals { outcome = 1, accuracy = 1, calls = 2, tool_use = 1 }
end)

test("the rows are deterministic", function()
  expect(script:row(17)):equals(script:row(17))
  expect(script:row(17)):differs(script:row(18))
end)
