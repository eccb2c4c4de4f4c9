--- Tests of scripts/visual_grid.lua.

local script = r1.script("scripts/visual_grid.lua")
local TASK = { start = 13, goal = 5, holes = { 6, 16 } }

test("each step shows a new picture", function()
  local trajectory = script:reset { task = TASK }
  local first = trajectory:observe()
  expect(#first):equals(1)
  local step = trajectory:step("up")
  expect(step.reward):near(-0.05)
  local shown = trajectory:observe()
  expect(#shown):equals(3)
  expect(shown[1].content[1].type):equals("image")
  expect(shown[3].content[1].hash):differs(shown[1].content[1].hash)
end)

test("the goal, a hole and an unknown word end the game", function()
  local ends = {
    { moves = { "up", "up" }, reward = 1, success = 1 },
    { moves = { "up", "right", "up" }, reward = -0.5, success = 0 },
    { moves = { "north" }, reward = -0.5, success = 0 },
  }
  for _, case in ipairs(ends) do
    local trajectory, step = script:reset { task = TASK }, nil
    for _, move in ipairs(case.moves) do step = trajectory:step(move) end
    expect(step.done):equals(true)
    expect(step.reward):near(case.reward)
    local _, parts = trajectory:reward()
    expect(parts.success):equals(case.success)
  end
end)

test("walls stop a move, and the same picture is the same image", function()
  local trajectory = script:reset { task = TASK }
  trajectory:step("left")
  local shown = trajectory:observe()
  expect(shown[3].content[1].hash):equals(shown[1].content[1].hash)
end)

test("the goal of each world can be reached", function()
  for index = 0, 30 do
    local task = script:row(index)
    expect(#task.holes):equals(2)
    expect(task.start):differs(task.goal)
  end
end)
