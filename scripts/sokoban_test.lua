--- Tests of scripts/sokoban.lua; the rules are tested in tests/lua/games_test.lua.

local script = r1.script("scripts/sokoban.lua")
local LEVEL = "######\n#@$ .#\n#    #\n######"

test("a solution earns the rewards of gym-sokoban", function()
  local trajectory = script:reset { task = { level = LEVEL } }
  expect(trajectory:observe()[2].content):equals("X Right 1, O Right 2. Wall Up Left.")
  local step = trajectory:step("<answer>Right || Right</answer>")
  expect(step.status):equals("terminated")
  expect(step.reward):near(-0.1 + (-0.1 + 1 + 10))
  local value, parts = trajectory:reward()
  expect(value):near(10.8)
  expect(parts.success):equals(1)
end)

test("actions beyond three are dropped, and the game ends after twelve", function()
  local trajectory = script:reset { task = { level = LEVEL } }
  trajectory:step("<answer>Down || Up || Down || Up || Down</answer>")
  expect(trajectory:state().actions):equals(3)
  for _ = 1, 2 do expect(trajectory:step("<answer>Up || Down || Up</answer>").done):equals(false) end
  expect(trajectory:step("<answer>Up || Down</answer>").done):equals(false)
  -- The twelfth action is the last one.
  expect(trajectory:step("<answer>Up || Down || Up</answer>").status):equals("terminated")
  expect(trajectory:state().actions):equals(12)
  local value, parts = trajectory:reward()
  expect(value):near(-1.2)
  expect(parts.success):equals(0)
end)

test("a reply without an answer costs the penalty only", function()
  local trajectory = script:reset { task = { level = LEVEL } }
  expect(trajectory:step("Right").reward):near(-0.1)
  expect(trajectory:state().actions):equals(0)
end)

test("every row has a solution of at most nine actions", function()
  local sokoban = require("@r1/games/sokoban")
  for row = 0, 9 do
    local task = script:row(row)
    expect(#sokoban.solve(sokoban.parse(task.level))):equals(task.length)
    expect(task.length >= 2 and task.length <= 9):equals(true)
    local trajectory, names = script:reset { task = task }, string.split(task.answer, " || ")
    for first = 1, #names, 3 do
      trajectory:step(`<answer>{table.concat(names, " || ", first, math.min(first + 2, #names))}</answer>`)
    end
    local _, parts = trajectory:reward()
    expect(parts.success):equals(1)
  end
end)
