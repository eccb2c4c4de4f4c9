--- Tests of scripts/frozen_lake.lua; the dynamics are tested in tests/lua/games_test.lua.

local script = r1.script("scripts/frozen_lake.lua")
local MAP = { "SFFF", "FFFF", "FFFF", "FFFG" }

test("the prompt has the way to the goal from the current state only", function()
  local trajectory = script:reset { task = { map = { "SH", "FG" }, start = 0 } }
  local shown = trajectory:observe()
  expect(shown[2].content):equals("Goal Down 1 Right 1. Hole Right. Wall Left Up.")
  trajectory:step("<answer>Up</answer>")
  expect(#trajectory:observe()):equals(2)
end)

test("several actions of a reply are taken, and a penalty is paid once for invalid ones", function()
  local trajectory = script:reset { task = { map = MAP, start = 0 } }
  local step = trajectory:step("<answer>Down || Jump</answer>")
  expect(step.reward):near(-0.1)
  expect(trajectory:state().actions):equals(1)
  expect(trajectory:step("I go down").reward):near(-0.1)
  expect(trajectory:step("<answer>down||Right||Up</answer>").reward):near(0)
  expect(trajectory:state().actions):equals(3)
end)

test("a hole and the goal end the game", function()
  for seed = 1, 20 do
    local trajectory = script:reset { task = { map = { "SFF", "FFF", "FFG" }, start = 0 }, seed = seed }
    local total = 0
    for _ = 1, 8 do
      local step = trajectory:step("<answer>Right || Down</answer>")
      total += step.reward
      if step.done then break end
    end
    local value, parts = trajectory:reward()
    expect(value):near(parts.success)
    expect(total):near(parts.success)
  end
  local trajectory = script:reset { task = { map = { "SH", "HG" }, start = 0 }, seed = 2 }
  for _ = 1, 8 do
    if trajectory:step("<answer>Right || Down</answer>").done then break end
  end
  local _, parts = trajectory:reward()
  expect(parts):equals({ success = 0, hole = 1, actions = trajectory:state().actions })
end)

test("the map depends on the row, and the ice on the seed", function()
  expect(script:row(0)):equals(script:row(0))
  expect(script:row(0)):differs(script:row(1))
  local function walk(seed)
    local trajectory, path = script:reset { task = { map = MAP, start = 0 }, seed = seed }, {}
    for _ = 1, 4 do
      trajectory:step("<answer>Down || Right</answer>")
      r1.push(path, trajectory:state().board.at)
    end
    return path
  end
  expect(walk(1)):equals(walk(1))
  local different = false
  for seed = 2, 6 do different = different or walk(seed)[4] ~= walk(1)[4] end
  expect(different):equals(true)
end)
