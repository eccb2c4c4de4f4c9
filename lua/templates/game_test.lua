--- Tests of {{file}}: r1 test {{test}}

local script = r1.script("{{script}}")

test("the goal is reached over ice", function()
  local trajectory = script:reset { task = { holes = 0 } }
  for _, move in ipairs { "6", "6", "2" } do
    local step = trajectory:step(move)
    expect(step.done):equals(false)
    expect(step.reward):near(0.1)
  end
  expect(trajectory:step("I go 2.").status):equals("terminated")
  expect(trajectory:reward()):near(1.4)
end)

test("a hole ends the game", function()
  local trajectory = script:reset { task = { holes = 1 } }
  expect(trajectory:step("2").status):equals("terminated")
  expect(trajectory:reward()):near(0.1)
end)

test("walls stop the player, and an invalid move has a cost", function()
  local trajectory = script:reset { task = { holes = 0 } }
  trajectory:step("8")
  expect(trajectory:state().row):equals(1)
  expect(trajectory:step("jump").reward):near(-0.02)
end)

test("the board depends on the seed", function()
  local board = function(seed) return script:reset({ task = { holes = 0.5 }, seed = seed }):state().holes end
  expect(board(3)):equals(board(3))
  expect(board(3)):differs(board(4))
end)
