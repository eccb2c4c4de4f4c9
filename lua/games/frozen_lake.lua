--- FrozenLake with the dynamics of gymnasium 1.4's `FrozenLake-v1`, random maps as in RAGEN
--- (arXiv:2504.20073), and an optimal player by value iteration.
---
--- A map is a list of rows of the tiles S (start), F (ice), H (hole) and G (goal). States are
--- numbered from 0 in reading order. Actions are 0 left, 1 down, 2 right, 3 up. tests/golden/games
--- compares all states and actions with gymnasium's transition tables.

local check = require("@r1/options")

local lake = {}

--- Names of the actions, in their order.
lake.ACTIONS = { "Left", "Down", "Right", "Up" }

local ROW, COLUMN = { 0, 1, 0, -1 }, { -1, 0, 1, 0 }
--- Discount of the optimal player, so that shorter paths are better.
local DISCOUNT = 0.97

--- The tile of a state.
function lake.tile(map, state)
  local width = #map[1]
  return string.sub(map[state // width + 1], state % width + 1, state % width + 1)
end

--- The state after an action without slipping.
local function moved(map, state, action)
  local width = #map[1]
  local row = math.clamp(state // width + ROW[action + 1], 0, #map - 1)
  local column = math.clamp(state % width + COLUMN[action + 1], 0, width - 1)
  return row * width + column
end

--- The outcomes of an action, as in gymnasium's `P[state][action]`: a list of { probability, next
--- state, reward, done }.
---
--- Options: `slippery` (true), `success_rate` (1/3: the probability of the direction itself; the
--- rest is shared by the two perpendicular ones). Holes and the goal are absorbing.
function lake.outcomes(map, state, action, options)
  options = check("outcomes", options, { "slippery", "success_rate" })
  local here = lake.tile(map, state)
  if here == "G" or here == "H" then return { { 1, state, 0, true } } end
  local function outcome(probability, direction)
    local next_state = moved(map, state, direction)
    local tile = lake.tile(map, next_state)
    return { probability, next_state, tile == "G" and 1 or 0, tile == "G" or tile == "H" }
  end
  if options.slippery == false then return { outcome(1, action) } end
  local rate = options.success_rate or 1 / 3
  local found = {}
  for turn = -1, 1 do
    found[#found + 1] = outcome(turn == 0 and rate or (1 - rate) / 2, (action + turn) % 4)
  end
  return found
end

--- Samples an outcome: the next state, the reward, and whether the game is over.
function lake.step(map, state, action, options)
  local outcomes = lake.outcomes(map, state, action, options)
  local left = #outcomes > 1 and math.random() or 0
  for k, outcome in ipairs(outcomes) do
    left -= outcome[1]
    if left < 0 or k == #outcomes then return outcome[2], outcome[3], outcome[4] end
  end
end

--- Whether the goal can be reached from the start.
function lake.solvable(map)
  local width, open, seen = #map[1], {}, {}
  for state = 0, #map * width - 1 do
    if lake.tile(map, state) == "S" then open, seen = { state }, { [state] = true } end
  end
  while #open > 0 do
    local state = table.remove(open)
    if lake.tile(map, state) == "G" then return true end
    for action = 0, 3 do
      local next_state = moved(map, state, action)
      if not seen[next_state] and lake.tile(map, next_state) ~= "H" then
        seen[next_state] = true
        open[#open + 1] = next_state
      end
    end
  end
  return false
end

--- A random map with a path from the start to the goal, and the start's state.
---
--- Options: `size` (4), `frozen` (0.8: the probability of ice), `corners` (false: start and goal
--- are random, as in RAGEN; true: they are in opposite corners, as in gymnasium).
function lake.random(options)
  options = check("random", options, { "size", "frozen", "corners" })
  local size, frozen = options.size or 4, options.frozen or 0.8
  while true do
    local start, goal = 0, size * size - 1
    if not options.corners then
      start = math.random(0, size * size - 1)
      goal = (start + math.random(size * size - 1)) % (size * size)
    end
    local map = {}
    for row = 1, size do
      local tiles = {}
      for column = 1, size do
        local state = (row - 1) * size + column - 1
        tiles[column] = state == start and "S" or state == goal and "G" or math.random() < frozen and "F" or "H"
      end
      map[row] = table.concat(tiles)
    end
    if lake.solvable(map) then return map, start end
  end
end

--- The board with the player: P the player, _ ice, O a hole, G the goal, X a player in a hole, √ a
--- player on the goal.
function lake.draw(map, state)
  local shown = { S = "_", F = "_", H = "O", G = "G" }
  local here = { S = "P", F = "P", H = "X", G = "√" }
  local width, lines = #map[1], {}
  for row = 1, #map do
    local cells = {}
    for column = 1, width do
      local at = (row - 1) * width + column - 1
      cells[column] = (at == state and here or shown)[lake.tile(map, at)]
    end
    lines[row] = table.concat(cells)
  end
  return table.concat(lines, "\n")
end

--- What the player sees around it: the way to the goal, and the neighbours that are holes or walls,
--- such as `Goal Down 2 Right 1. Hole Left. Wall Up.`
function lake.around(map, state)
  local width, goal = #map[1], 0
  for at = 0, #map * width - 1 do
    if lake.tile(map, at) == "G" then goal = at end
  end
  local down, right = goal // width - state // width, goal % width - state % width
  local way, holes, walls = {}, {}, {}
  if down ~= 0 then r1.push(way, `{down > 0 and "Down" or "Up"} {math.abs(down)}`) end
  if right ~= 0 then r1.push(way, `{right > 0 and "Right" or "Left"} {math.abs(right)}`) end
  for action, name in ipairs(lake.ACTIONS) do
    local next_state = moved(map, state, action - 1)
    if next_state == state then
      r1.push(walls, name)
    elseif lake.tile(map, next_state) == "H" then
      r1.push(holes, name)
    end
  end
  local text = `Goal {table.concat(way, " ")}.`
  if #holes > 0 then text = `{text} Hole {table.concat(holes, " ")}.` end
  if #walls > 0 then text = `{text} Wall {table.concat(walls, " ")}.` end
  return text
end

--- The optimal action of every state, by value iteration: a table from states to actions. Also the
--- table of values, with a discount of 0.97 per step.
function lake.plan(map, options)
  local states = #map * #map[1]
  local outcomes, values, plan = {}, {}, {}
  for state = 0, states - 1 do
    values[state], outcomes[state] = 0, {}
    for action = 0, 3 do outcomes[state][action] = lake.outcomes(map, state, action, options) end
  end
  for _ = 1, 200 do
    local change = 0
    for state = 0, states - 1 do
      local best, best_action = -1, 0
      for action = 0, 3 do
        local value = 0
        for _, outcome in ipairs(outcomes[state][action]) do
          value += outcome[1] * (outcome[3] + (outcome[4] and 0 or DISCOUNT * values[outcome[2]]))
        end
        if value > best + 1e-9 then best, best_action = value, action end
      end
      change = math.max(change, math.abs(best - values[state]))
      values[state], plan[state] = best, best_action
    end
    if change < 1e-4 then break end
  end
  return plan, values
end

return lake
