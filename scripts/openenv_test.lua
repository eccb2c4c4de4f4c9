--- Tests of scripts/openenv.lua, with the game of scripts/lib/digits.lua.

local digits = require("./lib/digits")
local script = r1.script("scripts/openenv.lua")

local function last(trajectory)
  local seen = trajectory:observe()
  return seen[#seen].content
end

test("letters say what is right", function()
  expect(digits.feedback("12", "12")):equals("G G")
  expect(digits.feedback("12", "21")):equals("Y Y")
  expect(digits.feedback("12", "31")):equals("X Y")
  expect(digits.feedback("12", "11")):equals("G Y")
end)

test("the possible secrets are those that agree with all feedback", function()
  expect(digits.all):equals { "12", "13", "21", "23", "31", "32" }
  expect(digits.possible({}, {})):equals(digits.all)
  expect(digits.possible({ "12" }, { "G G" })):equals { "12" }
  expect(digits.possible({ "12" }, { "Y X" })):equals { "31" }
  expect(digits.possible({ "12", "31" }, { "Y X", "X G" })):equals {}
end)

-- Always guesses the first possible secret; the turn at which it wins, if it does.
local function play(trajectory)
  local guesses, feedbacks = {}, {}
  for turn = 1, digits.TURNS do
    guesses[turn] = digits.possible(guesses, feedbacks)[1]
    local result = trajectory:step(`I guess [{guesses[turn]}].`)
    if result.done then return result.reward == 1 and turn or nil end
    feedbacks[turn] = string.match(last(trajectory), "\n([GYX ]+)$")
  end
end

test("guesses by the feedback win", function()
  for index = 0, 20 do
    local trajectory = script:reset { row = index }
    expect(last(trajectory)):contains("Guess the secret of 2")
    expect(play(trajectory) ~= nil):equals(true)
    local reward, parts = trajectory:reward()
    expect(parts.won):equals(1)
    expect(parts.greens):equals(1)
    expect(reward):near(1.2)
  end
end)

test("repeated and invalid guesses", function()
  local row = script:row(0)
  local wrong = row.secret == "12" and "13" or "12"
  local trajectory = script:reset { row = 0 }
  trajectory:step(`[{wrong}]`)
  expect(last(trajectory)):contains(digits.feedback(row.secret, wrong))
  trajectory:step(`[{wrong}]`)
  trajectory:step("I do not know")
  expect(last(trajectory)):equals("An invalid guess.")
  local reward, parts = trajectory:reward()
  expect(parts.repeats):equals(1)
  expect(parts.won):equals(0)
  expect(reward):near(0.2 * parts.greens - 0.1)
end)

test("the game ends after three guesses", function()
  local trajectory = script:reset { row = 0 }
  local result
  for _ = 1, digits.TURNS do result = trajectory:step("[no]") end
  expect(result.done):equals(true)
  expect(result.reward):equals(0)
end)
