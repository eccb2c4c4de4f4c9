--- FrozenLake in turns, after RAGEN (arXiv:2504.20073): random maps, slippery ice, several actions
--- per reply (docs/guide/recipes/frozen_lake.md).
---
---   r1 run scripts/frozen_lake.lua
---   r1 run scripts/frozen_lake.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false

local lake = require("@r1/games/frozen_lake")
local turns = require("@r1/games/turns")

local SYSTEM = "Reach the goal on slippery ice, avoid holes. <answer>Left || Up</answer>"
local ICE = { slippery = true, success_rate = 0.8 }
--- Share of random actions in the demonstrations.
local CLUMSY = 0.4

local game = turns {
  system = SYSTEM,
  actions = lake.ACTIONS,
  max_turns = 8,
  max_actions = 12,
  max_actions_per_turn = 2,
  history = 0,
  show_left = false,
  start = function(task) return { at = task.start } end,
  act = function(board, action, task)
    local reward, done
    board.at, reward, done = lake.step(task.map, board.at, action - 1, ICE)
    return reward, done
  end,
  show = function(board, task) return lake.around(task.map, board.at) end,
}

--- A row: a map, the start, and the best first action, which `r1 check` replies.
local function task()
  local map, start = lake.random { size = 4, frozen = 0.8 }
  return { map = map, start = start, answer = lake.ACTIONS[lake.plan(map, ICE)[start] + 1] }
end

--- A player that knows the best action of every state and takes it most of the time.
local function player(plan)
  return function(board, task, left)
    local names, at = {}, board.at
    for k = 1, math.random(math.min(left, 2)) do
      local action = math.random() < CLUMSY and math.random(0, 3) or plan[at]
      names[k] = lake.ACTIONS[action + 1]
      at = lake.outcomes(task.map, at, action, { slippery = false })[1][2]
    end
    return names
  end
end

local function demonstration()
  local row = task()
  return game.demonstration(row, player((lake.plan(row.map, ICE))))
end

--- The steps have the reward (1 at the goal, and the format penalty); these parts are only logged.
local function reward(state, outcome)
  return {
    success = { value = lake.tile(state.task.map, state.board.at) == "G" and 1 or 0, weight = 0 },
    hole = { value = lake.tile(state.task.map, state.board.at) == "H" and 1 or 0, weight = 0 },
    actions = { value = state.actions, weight = 0 },
  }
end

return r1.recipe {
  env = game.env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 600, batch_size = 64, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = task },
    eval = r1.data.generate { count = 256, seed = 2, row = task },
  },
  sampling = { max_new_tokens = 24 },
  trainer = r1.grpo { steps = 80, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, limit = 256, accuracy = "success" },
}
