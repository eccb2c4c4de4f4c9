--- What {{file}} promises: r1 test {{test}}

local script = r1.script("{{beside}}")

test("a search finds the page, and the answer is worth 1", function()
  local trajectory = script:reset { row = 0 }
  local step = trajectory:call("search", { query = "Danube sea" })
  expect(step.tools[1].output):contains("Black Sea")
  trajectory:step("<answer>Black Sea</answer>")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts.searches):equals(1)
end)

test("a wrong answer in the right form is worth a little", function()
  local trajectory = script:reset { row = 0 }
  trajectory:step("<answer>North Sea</answer>")
  expect(trajectory:reward()):near(0.1)
end)

test("nothing found is said, not raised", function()
  local step = script:reset({ row = 0 }):call("search", { query = "xyzzy" })
  expect(step.tools[1].ok):equals(false)
  expect(step.tools[1].output):contains("nothing was found")
end)
