--- Tests of {{file}}: r1 test {{test}}

local script = r1.script("{{script}}")
local task = { problem = "Ana has 43 boxes with 58 pens in each. How many pens in all?", answer = "2494" }

local function reward_of(reply)
  local trajectory = script:reset { task = task }
  trajectory:step(reply)
  return (trajectory:reward())
end

test("a program has reward 1 if it prints the right result, a small reward if it runs", function()
  expect(reward_of("<code>print(43*58)</code>")):near(1)
  expect(reward_of("<code>print(43+58)</code>")):near(0.2)
  expect(reward_of("<code>print(43*</code>")):near(0)
  expect(reward_of("2494")):near(0)
end)

test("a program that fails can be corrected", function()
  local trajectory = script:reset { task = task }
  expect(trajectory:step("<code>print(43*)</code>").done):equals(false)
  trajectory:step("<code>print(43*58)</code>")
  expect(trajectory:step("That is it.").done):equals(true)
  expect(trajectory:reward()):near(1)
end)

test("a program cannot set its own reward", function()
  expect(reward_of("<code>raise SystemExit</code>") < 1):equals(true)
  expect(reward_of("<code>import os; os._exit(0)</code>") < 1):equals(true)
end)
