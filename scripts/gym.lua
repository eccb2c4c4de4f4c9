--- An environment of Gymnasium as a recipe: FrozenLake-v1 in a Python process
--- (docs/guide/recipes/gym.md). Needs `python3 -m pip install gymnasium`.
---
---   r1 run scripts/gym.lua
---   r1 run scripts/gym.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false

local env_gym = require("@r1/env_gym")
local lake = require("@r1/games/frozen_lake")

local SYSTEM = "You are on a frozen lake. P is you, G the goal, O are holes, _ is ice. Reach G and avoid O. "
  .. "Answer <answer>Left</answer> with one of Left, Down, Right, Up."
--- The map of FrozenLake-v1.
local MAP = { "SFFF", "FHFH", "FFFH", "HFFG" }

--- Any text that the policy may write becomes an action of the environment, or a reason.
local function action_of(action)
  local place = table.find(lake.ACTIONS, r1.answer(action.text) or "")
  if place then return place - 1 end
  return nil, "the answer must be one of Left, Down, Right, Up"
end

local env = env_gym {
  "FrozenLake-v1",
  kwargs = { is_slippery = false },
  system = SYSTEM,
  max_steps = 12,
  observation = function(at) return lake.draw(MAP, at) end,
  action = action_of,
  -- A small cost of every step, so that short paths are better.
  reward = function(answer) return answer.reward - 0.01 end,
}

--- A player that takes a random action half of the time.
local function demonstration()
  local plan, at, done = lake.plan(MAP, { slippery = false }), 0, false
  local messages = { r1.system(SYSTEM) }
  for _ = 1, 12 do
    local action = math.random() < 0.5 and math.random(0, 3) or plan[at]
    r1.push(messages, r1.user(lake.draw(MAP, at)))
    r1.push(messages, r1.assistant(`<answer>{lake.ACTIONS[action + 1]}</answer>`))
    at, _, done = lake.step(MAP, at, action, { slippery = false })
    if done then break end
  end
  return { messages = messages }
end

--- A row: the seed, and the first action of the shortest path, which `r1 check` replies.
local function row(index) return { seed = index, answer = "Down" } end

return r1.recipe {
  needs = { "process:python3" },
  env = env,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 100, batch_size = 32, lr = 2e-3, warmup = 10 },
  },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = row },
    eval = r1.data.generate { count = 64, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 16 },
  trainer = r1.grpo { steps = 30, group_size = 8, groups_per_step = 8, lr = 3e-4 },
  eval = { temperature = 1 },
}
