--- Sokoban in turns, after RAGEN (arXiv:2504.20073): one box in a random room, several actions per
--- reply, the rewards of gym-sokoban (docs/guide/recipes/sokoban.md).
---
---   r1 run scripts/sokoban.lua
---   r1 run scripts/sokoban.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false

local sokoban = require("@r1/games/sokoban")
local turns = require("@r1/games/turns")

local SYSTEM = "Push the box X onto the target O. <answer>Right || Up</answer>"
--- Size of the rooms with their outer walls.
local ROOM = { width = 6, height = 6, boxes = 1, walls = 0, most = 9 }
--- Share of random actions in the demonstrations.
local CLUMSY = 0.3

local game = turns {
  system = SYSTEM,
  actions = sokoban.ACTIONS,
  max_turns = 5,
  max_actions = 12,
  max_actions_per_turn = 3,
  history = 0,
  show_left = false,
  start = function(task) return sokoban.parse(task.level) end,
  act = function(room, action) return sokoban.step(room, action) end,
  show = sokoban.around,
}

--- A row: a level, and a shortest solution, which `r1 check` replies.
local function task()
  local level, actions = sokoban.random(ROOM)
  local names = {}
  for k, action in ipairs(actions) do names[k] = sokoban.ACTIONS[action] end
  return { level = level, answer = table.concat(names, " || "), length = #actions }
end

--- A player that plans by search and takes a random action now and then.
local function player(room, _task, left)
  local names = {}
  local plan = sokoban.solve(room, { limit = 2000 }) or {}
  for k = 1, math.min(left, math.random(3), math.max(1, #plan)) do
    local clumsy = plan[k] == nil or math.random() < CLUMSY
    names[k] = sokoban.ACTIONS[clumsy and math.random(4) or plan[k]]
    if clumsy then break end
  end
  return names
end

local function demonstration() return game.demonstration(task(), player) end

--- The steps have the reward of gym-sokoban and the format penalty; these parts are only logged.
local function reward(state, outcome)
  return {
    success = { value = sokoban.solved(state.board) and 1 or 0, weight = 0 },
    actions = { value = state.actions, weight = 0 },
  }
end

return r1.recipe {
  env = game.env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 800, batch_size = 64, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = task },
    eval = r1.data.generate { count = 256, seed = 2, row = task },
  },
  sampling = { max_new_tokens = 32 },
  trainer = r1.grpo { steps = 60, group_size = 8, groups_per_step = 16, lr = 2e-4 },
  eval = { temperature = 1, limit = 256, accuracy = "success" },
}
