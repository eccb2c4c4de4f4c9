--- Environments of gymnasium and of an OpenEnv server, stepped as by a policy (`just test-worlds`).

local function start(name, row) return r1.script("tests/worlds/" .. name .. ".lua"):reset { row = row or 0 } end

local function seen(attempt)
  local messages = attempt:observe()
  return messages[#messages].content
end

--- Steps with each response; the last observation and the last result.
local function play(attempt, responses)
  local result
  for _, response in ipairs(responses) do result = attempt:step(response) end
  return seen(attempt), result
end

test("FrozenLake: an ansi rendering, the way to the goal", function()
  local attempt = start("lake")
  expect(seen(attempt)):equals("\n[S]FFF\nFHFH\nFFFH\nHFFG\n")
  local text, result = play(attempt, { "1", "1", "2", "1", "2" })
  expect(text):equals("  (Right)\nSFFF\nFHFH\nFFFH\nHF[F]G\n")
  expect(result.done):equals(false)
  text, result = play(attempt, { "left", "2" })
  expect(result.done):equals(true)
  expect(result.reward):equals(1)
  expect(result.status):equals("terminated")
end)

test("CartPole: numbers of 32 bits, equal starts of equal seeds, a copy of a trajectory", function()
  local one, two, other = start("cart", 0), start("cart", 0), start("cart", 1)
  expect(seen(one)):equals(seen(two))
  expect(seen(one)):differs(seen(other))
  expect(#seen(one) < 70):equals(true)
  play(one, { "0", "1", "1" })
  local copy = one:fork()
  expect((play(copy, { "0" }))):equals((play(one, { "0" })))
end)

test("Pendulum: an action out of its box, truncated at 200 steps", function()
  local attempt = start("pendulum")
  local text, result = play(attempt, { "[3]" })
  expect(text):equals("Error: the action must be a list of 1 numbers from -2.0 to 2.0, got [3]")
  for _ = 1, 200 do result = attempt:step("[0.5]") end
  expect(result.done):equals(true)
  expect(result.status):equals("truncated")
end)

test("Blackjack: an observation that is a tuple", function()
  expect((seen(start("cards")))):matches("^%[%d+,%d+,%d+%]$")
end)

test("every action space", function()
  local attempt = start("spaces")
  local good = { box = { { 0, 1 }, { -1, 0.5 } }, bits = { 0, 1, 1 }, many = { 1, 2 }, one = 6, pair = { 1, "up" } }
  local text, result = play(attempt, { r1.json.encode(good) })
  expect(text):contains("float32 int8 int64")
  expect(text):contains("\"small\":0.1")
  expect(result.reward):equals(1)
  for name, bad in pairs {
    box = { { 0, 1 } }, bits = { 0, 1, 2 }, many = { 1, 3 }, one = 7, pair = { 1, "a!" },
  } do
    local given = table.clone(good)
    given[name] = bad
    text, result = play(attempt, { r1.json.encode(given) })
    expect(text):contains("Error: the action." .. name)
    expect(result.reward):equals(0)
  end
end)

test("OpenEnv: a game over WebSocket, its state, its errors", function()
  local attempt = start("guess", 2)
  expect(seen(attempt)):equals("guess a number from 1 to 9")
  local text = play(attempt, { "nine" })
  expect(text):contains("Error: step: the server reports an error: Invalid message (VALIDATION_ERROR); number: ")
  local result
  for number = 1, 9 do
    text, result = play(attempt, { tostring(number) })
    if result.done then break end
    expect(text):equals("higher")
  end
  expect(text):equals("right")
  expect(result.status):equals("terminated")
  expect(result.reward > 1):equals(true)
  -- The same seed has the same number; a copy goes on by itself.
  local again = start("guess", 2)
  play(again, { "1" })
  local copy = again:fork()
  expect((play(copy, { "9" }))):equals((play(again, { "9" })))
  expect(function() start("guess", 2):step("0") end):raises("no zero (EXECUTION_ERROR)")
end)

test("scripts/openenv.lua plays a word over OpenEnv", function()
  local settings = { ["params.url"] = "http://127.0.0.1:18766" }
  local attempt = r1.script("scripts/openenv.lua", { settings = settings }):reset { row = 0 }
  expect(seen(attempt)):equals("You play Wordle.")
  local text, result = play(attempt, { "I guess [caner]." })
  expect(text):equals("C A N E R\nG Y Y Y Y\n\nYou have 5 guesses left.")
  expect(result.done):equals(false)
  text, result = play(attempt, { "[caner]", "[CRANE]" })
  expect(result.done):equals(true)
  local reward, parts = attempt:reward()
  expect(parts):equals { won = 1, greens = 1, repeats = 1, guesses = 3 }
  expect(reward):near(1.1)
end)
