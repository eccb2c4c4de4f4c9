--- What {{file}} promises: r1 test {{test}}

local script = r1.script("{{beside}}")

test("the goal is reached over ice", function()
  local trajectory = script:reset { task = { holes = 0 } }
  for _, move in ipairs { "right", "right", "right", "down", "down" } do
    expect(trajectory:step(move).done):equals(false)
  end
  expect(trajectory:step("I go down.").status):equals("terminated")
  expect(trajectory:reward()):near(1)
end)

test("a hole ends the game", function()
  local trajectory = script:reset { task = { holes = 1 } }
  expect(trajectory:step("down").status):equals("terminated")
  expect(trajectory:reward()):near(0)
end)

test("walls hold, and nonsense costs", function()
  local trajectory = script:reset { task = { holes = 0 } }
  trajectory:step("up")
  expect(trajectory:state().row):equals(1)
  expect(trajectory:step("jump").reward):near(-0.1)
end)

test("the seed makes the board", function()
  local board = function(seed) return script:reset({ task = { holes = 0.5 }, seed = seed }):state().holes end
  expect(board(3)):equals(board(3))
  expect(board(3)):differs(board(4))
end)
