--- What {{file}} promises: r1 test {{test}}

local script = r1.script("{{beside}}")

test("the exact weight is worth 1", function()
  local trajectory = script:reset { task = { weight = 9 } }
  trajectory:step("melon")
  expect(trajectory:state().filled):equals(7)
  expect(trajectory:step("two apples").reward):near(-0.05)
  trajectory:step("apples")
  expect(trajectory:step("Done.").status):equals("terminated")
  local reward, parts = trajectory:reward()
  expect(parts):equals { filled = 1, exact = 1 }
  expect(reward):near(0.95)
end)

test("too much ends the task, and is worth nothing", function()
  local trajectory = script:reset { task = { weight = 5 } }
  expect(trajectory:step("pumpkin").done):equals(true)
  expect(trajectory:reward()):near(0)
end)

test("what is not there is said", function()
  local trajectory = script:reset { task = { weight = 5 } }
  trajectory:step("")
  local messages = trajectory:observe()
  expect(messages[#messages].content):contains("no such thing")
end)
