--- Tests of scripts/trl_rewards.lua.

local script = r1.script("scripts/trl_rewards.lua")
local task = { prompt = { r1.user("Ana has 48 pens and buys 24. How many pens in all?") }, answer = 72 }

local function graded(reply)
  local trajectory = script:reset { task = task }
  trajectory:step(reply)
  return trajectory:reward()
end

test("the reward is the weighted sum of the functions", function()
  local reward, parts = graded("40+20=60\n8+4=13\n60+12=72\n#### 72")
  expect(parts.accuracy):equals(1)
  expect(parts.steps):near(2 / 3)
  expect(reward):near(1 + 0.2 * 2 / 3 + 0.1 * parts.brevity)
end)

test("a function that returns None is not applicable", function()
  local reward, parts = graded("#### 72")
  expect(parts.steps):equals(nil)
  expect(reward):near(1)
end)

test("the solutions of generated rows are right", function()
  for index = 0, 5 do
    local trajectory = script:reset { row = index }
    trajectory:step(script:row(index).reasoning)
    local _, parts = trajectory:reward()
    expect(parts.accuracy):equals(1)
    expect(parts.steps):equals(1)
  end
end)
