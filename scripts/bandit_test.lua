--- Tests of scripts/bandit.lua.

local script = r1.script("scripts/bandit.lua")
local TASK = { arms = { "Trader", "Teacher" }, risky = "Trader", split = "train" }

local function pull(arm, seed)
  local trajectory = script:reset { task = TASK, seed = seed }
  expect(trajectory:step(`<answer>{arm}</answer>`).status):equals("terminated")
  local value, parts = trajectory:reward()
  return value, parts.risky
end

test("the safe arm always pays 0.1", function()
  for seed = 1, 10 do expect({ pull("Teacher", seed) }):equals({ 0.1, 0 }) end
end)

test("the risky arm pays 1 in a quarter of the trajectories", function()
  local sum = 0
  for seed = 1, 400 do
    local value, risky = pull("Trader", seed)
    expect({ value == 0 or value == 1, risky }):equals({ true, 1 })
    sum += value
  end
  expect(sum / 400):near(0.25, 0.06)
end)

test("a reply that names no arm costs the format penalty", function()
  expect({ pull("Pilot", 1) }):equals({ -0.1, 0 })
  local trajectory = script:reset { task = TASK }
  expect(trajectory:step("Trader").reward):near(-0.1)
end)

test("rows have the names of their split in both orders", function()
  local first, names = 0, {}
  for row = 0, 99 do
    local task = script:row(row)
    if task.arms[1] == task.risky then first += 1 end
    names[task.risky] = true
  end
  expect(first / 100):near(0.5, 0.2)
  expect(names.Trader):equals(true)
  expect(names.Explorer):equals(nil)
end)
