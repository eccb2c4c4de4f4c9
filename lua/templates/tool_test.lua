--- What {{file}} promises: r1 test {{test}}

local script = r1.script("{{beside}}")
local task = { problem = "How much is 20 plus 22?", answer = "42" }

test("the right answer is worth 1, another nothing", function()
  for reply, worth in pairs { ["42"] = 1, ["It is 42."] = 1, ["41"] = 0, ["no idea"] = 0 } do
    local trajectory = script:reset { task = task }
    expect(trajectory:step(reply).done):equals(true)
    expect(trajectory:reward()):near(worth)
  end
end)

test("a call is answered, and the task goes on", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:call("add", { a = 20, b = 22 })
  expect(step.done):equals(false)
  expect(step.tools[1].output):equals("42")
  trajectory:step("42")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts.calls):equals(1)
end)

test("a call that does not fit is told so", function()
  local step = script:reset({ task = task }):call("add", { a = "twenty" })
  expect(step.tools[1].ok):equals(false)
  expect(step.done):equals(false)
end)
