--- {{name}}: a game on a board. A lake with holes in the ice: find the way to the goal.
---
---   r1 check {{file}}
---   r1 repl {{file}}
---   r1 run {{file}}

local SIZE = 4
local MOVES = { up = { -1, 0 }, down = { 1, 0 }, left = { 0, -1 }, right = { 0, 1 } }

-- The board as the policy sees it: P the player, G the goal, O a hole, _ ice.
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

local env = r1.env {
  max_steps = 10,
  -- The board comes from the seed: the same seed, the same board.
  reset = function(task)
    local state = { row = 1, column = 1, holes = {}, at_goal = false, messages = {} }
    for cell = 2, SIZE * SIZE - 1 do state.holes[cell] = math.random() < task.holes end
    state.holes[1], state.holes[SIZE * SIZE] = false, false
    local rules = "Walk from P to G over the ice (_) and into no hole (O). Say up, down, left or right, one at a time."
    state.messages[1] = r1.user(rules .. "\n\n" .. draw(state))
    return state
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    -- The last direction that is named counts.
    local move
    for word in string.gmatch(string.lower(action.text), "%a+") do move = MOVES[word] or move end
    if move == nil then
      r1.push(state.messages, r1.user("Say up, down, left or right."))
      return { reward = -0.1 }
    end
    state.row = math.clamp(state.row + move[1], 1, SIZE)
    state.column = math.clamp(state.column + move[2], 1, SIZE)
    local cell = (state.row - 1) * SIZE + state.column
    state.at_goal = cell == SIZE * SIZE
    if state.at_goal or state.holes[cell] then return { done = true } end
    r1.push(state.messages, r1.user(draw(state)))
    return {}
  end,
}

local function reward(state, outcome) return { goal = state.at_goal and 1 or 0 } end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 1000, seed = 1, row = function() return { holes = 0.2 } end },
    eval = r1.data.generate { count = 50, seed = 2, row = function() return { holes = 0.2 } end },
  },
  sampling = { max_new_tokens = 12 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 8, lr = 1e-4 },
}
