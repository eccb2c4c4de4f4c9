--- Tests of scripts/countdown.lua; solver and checker are tested in tests/lua/games_test.lua.

local script = r1.script("scripts/countdown.lua")
local TASK = { numbers = { 3, 5, 2 }, target = 6, prompt = "Numbers: 3 5 2. Target: 6." }

local function parts_of(reply)
  local trajectory = script:reset { task = TASK }
  expect(trajectory:step(reply).status):equals("terminated")
  local value, parts = trajectory:reward()
  return value, parts
end

test("a solution earns 1, an expression of the numbers 0.1", function()
  expect((parts_of("<answer>3 + 5 - 2</answer>"))):near(1)
  expect((parts_of("<answer>(5 - 2) + 3</answer>"))):near(1)
  local value, parts = parts_of("<answer>3 + 5 + 2</answer>")
  expect(value):near(0.1)
  expect(parts):equals({ solved = 0, numbers = 1, parsed = 1 })
end)

test("other replies earn nothing", function()
  for _, reply in ipairs { "3 + 5 - 2", "<answer>6</answer>", "<answer>3 + 3</answer>", "<answer>5 + 3 - 2 = 6</answer>", "" } do
    expect((parts_of(reply))):near(0)
  end
end)

test("every row has a solution, and no training row is held out", function()
  local held_out = {}
  for row = 0, 99 do
    local task = script:row(row, "eval")
    held_out[task.prompt] = true
    expect(task.target > 0):equals(true)
  end
  for row = 0, 99 do
    local task = script:row(row)
    expect(held_out[task.prompt]):equals(nil)
    local trajectory = script:reset { task = task }
    trajectory:step(`<answer>{task.answer}</answer>`)
    expect((trajectory:reward())):equals(1)
  end
end)
