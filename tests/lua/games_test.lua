--- The games of lua/games against their references: gymnasium's transition tables, steps of
--- gym-sokoban, enumeration by Python's fractions (tests/golden/games).

local countdown = require("@r1/games/countdown")
local lake = require("@r1/games/frozen_lake")
local sokoban = require("@r1/games/sokoban")
local turns = require("@r1/games/turns")

local function golden(name)
  local rows = {}
  for line in string.gmatch(assert(r1.fs.read(`tests/golden/games/{name}.jsonl`)), "[^\n]+") do
    r1.push(rows, r1.json.decode(line))
  end
  return rows
end

test("all states and actions of FrozenLake equal gymnasium", function()
  local tables, outcomes = 0, 0
  for _, row in ipairs(golden("frozen_lake")) do
    for state, actions in ipairs(row.outcomes or {}) do
      for action, wanted in ipairs(actions) do
        local found = lake.outcomes(row.map, state - 1, action - 1, { slippery = row.slippery, success_rate = row.success_rate })
        expect(#found):equals(#wanted)
        for k, outcome in ipairs(wanted) do
          expect(found[k][1]):near(outcome[1], 1e-12)
          expect({ found[k][2], found[k][3], found[k][4] }):equals({ outcome[2], outcome[3], outcome[4] })
          outcomes += 1
        end
      end
    end
    if row.outcomes then tables += 1 end
  end
  expect({ tables, outcomes > 1500 }):equals({ 9, true })
end)

test("an action slips to the sides as often as it should", function()
  local map, count = { "FFF", "FSF", "FFF" }, {}
  for _ = 1, 3000 do
    local at = lake.step(map, 4, 2, { success_rate = 0.8 })
    count[at] = (count[at] or 0) + 1
  end
  expect(count[5] / 3000):near(0.8, 0.03)
  expect(count[1] / 3000):near(0.1, 0.02)
  expect(count[7] / 3000):near(0.1, 0.02)
end)

test("the value of the optimal player is that of the known lake", function()
  local map = { "SFFF", "FHFH", "FFFH", "HFFG" }
  local plan, values = lake.plan(map, { slippery = false })
  expect(values[0]):near(0.97 ^ 5, 1e-3)
  expect({ plan[0], plan[13], plan[14] }):equals({ 1, 2, 2 })
  plan = lake.plan(map, {})
  expect({ plan[0], plan[4], plan[9], plan[14] }):equals({ 0, 0, 1, 1 })
end)

test("every random map can be solved", function()
  for _ = 1, 50 do
    local map, start = lake.random { size = 4, frozen = 0.6 }
    expect(lake.tile(map, start)):equals("S")
    expect(lake.solvable(map)):equals(true)
  end
  expect(lake.solvable({ "SH", "HG" })):equals(false)
end)

test("steps of Sokoban equal gym-sokoban", function()
  local steps, solved = 0, 0
  for _, row in ipairs(golden("sokoban")) do
    local room = sokoban.parse(row.level)
    expect(sokoban.text(room)):equals(row.level)
    for _, wanted in ipairs(row.steps) do
      local reward, done, player, box = sokoban.step(room, wanted[1])
      expect(reward):near(wanted[2])
      expect({ done, player, box }):equals({ wanted[3], wanted[4], wanted[5] })
      expect(sokoban.text(room)):equals(wanted[6])
      steps += 1
      if done then solved += 1 end
    end
  end
  expect({ steps > 700, solved >= 3 }):equals({ true, true })
end)

test("solutions of Sokoban solve, with the fewest pushes", function()
  local room = sokoban.parse("#######\n#@ $. #\n#     #\n#######")
  expect(sokoban.solve(room)):equals({ 4, 4 })
  expect(sokoban.solve(sokoban.parse("#####\n#$  #\n# @.#\n#####"))):equals(nil)
  local _, why = sokoban.solve(room, { limit = 1 })
  expect(why):equals("limit")
  for _ = 1, 20 do
    local text, solution = sokoban.random { boxes = 2, walls = 2, least = 3, most = 20 }
    local played = sokoban.parse(text)
    local actions, done = sokoban.solve(played), false
    expect(actions):equals(solution)
    for _, action in ipairs(actions) do _, done = sokoban.step(played, action) end
    expect(done):equals(true)
  end
end)

test("levels of a Boxoban file are separated", function()
  local levels = sokoban.levels("; 0\n####\n#@ #\n####\n\n; 1\n###\n#@#\n###\n")
  expect(levels):equals({ "####\n#@ #\n####", "###\n#@#\n###" })
  expect(function() sokoban.parse(levels[1]) end):raises("0 boxes and 0 targets")
end)

test("Countdown tasks are solved exactly if a solution exists", function()
  local solved = 0
  for _, row in ipairs(golden("countdown")) do
    if row.solvable ~= nil then
      local text = countdown.solve(row.numbers, row.target)
      expect(text ~= nil):equals(row.solvable)
      if text then
        expect(countdown.grade(text, row.numbers, row.target).solved):equals(true)
        solved += 1
      end
    end
  end
  expect(solved > 10):equals(true)
end)

test("answers of Countdown are graded as by Python's fractions", function()
  local graded = 0
  for _, row in ipairs(golden("countdown")) do
    if row.grade then
      local grade = countdown.grade(row.text, row.numbers, row.target)
      expect({ row.text, grade.parsed, grade.numbers, grade.solved }):equals({ row.text, row.grade[1], row.grade[2], row.grade[3] })
      graded += 1
    end
  end
  expect(graded):equals(72)
end)

test("each number counts at most once", function()
  local grade = function(text, all) return countdown.grade(text, { 3, 3, 5 }, 6, { all = all }) end
  expect(grade("3 + 3", false).solved):equals(true)
  expect(grade("3 + 3", true).solved):equals(false)
  expect(grade("3 + 3 + 3 - 3", false).numbers):equals(false)
  -- 1/3 is not a decimal fraction: 8 / (3 - 8 / 3) = 24.
  expect(countdown.grade("8 / (3 - 8 / 3)", { 3, 3, 8, 8 }, 24).solved):equals(true)
  expect(countdown.solve({ 3, 3, 8, 8 }, 24)):differs(nil)
  expect(countdown.solve({ 2, 4, 9 }, 6, { all = false })):equals("2 + 4")
end)

test("a demonstration has the prompt that the policy sees", function()
  local function count(history)
    return turns {
      system = "Count.", actions = { "Add" }, max_turns = 4, history = history, show_left = false,
      start = function() return { number = 0 } end,
      act = function(board)
        board.number += 1
        return 0, false
      end,
      show = function(board) return tostring(board.number) end,
    }
  end
  local function player() return { "Add" } end
  local function texts(history)
    local found = {}
    for place, message in ipairs(count(history).demonstration({}, player).messages) do found[place] = message.content end
    return table.concat(found, " ")
  end
  local reply = "<answer>Add</answer>"
  expect(texts(nil)):equals(`Count. 0 {reply} 1 {reply} 2 {reply} 3 {reply}`)
  local seen = {}
  for _ = 1, 40 do
    seen[texts(0)] = true
    local one = texts(1)
    expect(one == `Count. 0 {reply}` or string.match(one, "^Count%. %d <answer>Add</answer> %d <answer>Add</answer>$") ~= nil):equals(true)
  end
  for number = 0, 3 do expect(seen[`Count. {number} {reply}`]):equals(true) end
end)

test("Countdown is exact, or refuses: a rounded product does not cancel", function()
  -- 94906267^2 = 9007199515875289 is above 2^53, where doubles are even.
  expect((countdown.evaluate("94906267 * 94906267 - 9007199515875288"))):equals(nil)
  expect((countdown.evaluate("1/94906267 + 1/94906267"))[2]):equals(94906267)
  expect((countdown.evaluate("94906267/94906265 * 94906265/94906267"))[1]):equals(1)
  expect((countdown.evaluate("999999999999999/13 - 999999999999998/13"))):equals({ 1, 13 })
  expect(countdown.grade("3 × 4", { 3, 4 }, 12).why):equals('"×" is not part of an expression')
end)
