--- {{name}}: a board game. A frozen lake with holes: find the way to the goal.
---
---   r1 check {{file}}
---   r1 repl {{file}}
---   r1 run {{file}}

local SIZE = 3
-- As on a number pad. The last digit of a reply is the move.
local MOVES = { ["8"] = { -1, 0 }, ["2"] = { 1, 0 }, ["4"] = { 0, -1 }, ["6"] = { 0, 1 } }

-- The board in the prompt: P the player, G the goal, O a hole, _ ice.
local function draw(state)
  local lines = {}
  for row = 1, SIZE do
    local cells = {}
    for column = 1, SIZE do
      local cell = state.holes[(row - 1) * SIZE + column] and "O" or "_"
      if row == SIZE and column == SIZE then cell = "G" end
      if row == state.row and column == state.column then cell = "P" end
      cells[column] = cell
    end
    lines[row] = table.concat(cells, " ")
  end
  return table.concat(lines, "\n")
end

-- Number of steps from the player to the goal, without regard to holes.
local function distance(state) return 2 * SIZE - state.row - state.column end

local env = r1.env {
  max_steps = 8,
  -- The board depends only on the seed.
  reset = function(task)
    local state = { row = 1, column = 1, holes = {}, at_goal = false, messages = {} }
    for cell = 2, SIZE * SIZE - 1 do state.holes[cell] = math.random() < task.holes end
    state.holes[1], state.holes[SIZE * SIZE] = false, false
    local rules = "Walk from P to G over the ice (_) and into no hole (O): 8 is up, 2 down, 4 left, 6 right."
    state.messages[1] = r1.user(rules .. "\n\n" .. draw(state))
    return state
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    local move = MOVES[string.match(action.text, "(%d)%D*$") or ""]
    if move == nil then
      r1.push(state.messages, r1.user("Say 8, 2, 4 or 6."))
      return { reward = -0.02 }
    end
    local before = distance(state)
    state.row = math.clamp(state.row + move[1], 1, SIZE)
    state.column = math.clamp(state.column + move[2], 1, SIZE)
    local cell = (state.row - 1) * SIZE + state.column
    state.at_goal = cell == SIZE * SIZE
    -- A small reward for every step towards the goal, subtracted for a step away from it.
    local nearer = 0.1 * (before - distance(state))
    if state.at_goal or state.holes[cell] then return { reward = nearer, done = true } end
    r1.push(state.messages, r1.user(draw(state)))
    return { reward = nearer }
  end,
}

local function reward(state, outcome) return { goal = state.at_goal and 1 or 0 } end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 1000, seed = 1, row = function() return { holes = 0.1 } end },
    eval = r1.data.generate { count = 64, seed = 2, row = function() return { holes = 0.1 } end },
  },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 24, group_size = 8, groups_per_step = 8, lr = 3e-4 },
  eval = { temperature = 1, accuracy = "goal" },
}
