--- Tests of scripts/gym.lua, with gymnasium.

local script = r1.script("scripts/gym.lua")

test("the shortest path of FrozenLake-v1 reaches the goal", function()
  local trajectory = script:reset { task = { seed = 1 } }
  expect(trajectory:observe()[2].content):equals("P___\n_O_O\n___O\nO__G")
  for _, name in ipairs { "Down", "Down", "Right", "Down", "Right" } do
    expect(trajectory:step(`<answer>{name}</answer>`).done):equals(false)
  end
  local step = trajectory:step("<answer>Right</answer>")
  expect(step.reward):near(0.99)
  expect(step.status):equals("terminated")
end)

test("a hole ends the episode, and other replies are refused", function()
  local trajectory = script:reset { task = { seed = 1 } }
  expect(trajectory:step("left").reward):equals(0)
  expect(trajectory:observe()[4].content):equals("Error: the answer must be one of Left, Down, Right, Up")
  trajectory:step("<answer>Right</answer>")
  local step = trajectory:step("<answer>Down</answer>")
  expect(step.reward):near(-0.01)
  expect(step.status):equals("terminated")
end)
