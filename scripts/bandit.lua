--- RAGEN's two-armed bandit (arXiv:2504.20073): one reply chooses between a safe and a risky arm by
--- their names (docs/guide/recipes/bandit.md).
---
---   r1 run scripts/bandit.lua
---   r1 run scripts/bandit.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false

local bandit = require("@r1/games/bandit")

local SYSTEM = "Choose the arm that pays more on average. <answer>NAME</answer>"
--- RAGEN's format penalty, for a reply that names neither arm.
local FORMAT = -0.1

local function prompt(task) return `{task.arms[1]} or {task.arms[2]}?` end

local env = r1.env {
  format = "answer",
  max_steps = 1,
  reset = function(task)
    return { task = task, messages = { r1.system(SYSTEM), r1.user(prompt(task)) } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    local call = action.tool_calls[1]
    local arm = call and call.arguments and call.arguments.action
    if not table.find(state.task.arms, arm) then
      return { reward = FORMAT, parts = { format = FORMAT }, done = true }
    end
    state.arm = arm
    local points = bandit.pull(state.task, arm)
    return { reward = points, parts = { points = points }, done = true }
  end,
}

--- RAGEN counts the risky arm as the success, because it pays 0.25 on average and the safe one 0.1.
local function reward(state)
  return { risky = { value = state.arm == state.task.risky and 1 or 0, weight = 0 } }
end

--- Choices of a player without an opinion, in several tasks.
local function demonstration()
  local messages = { r1.system(SYSTEM) }
  for _ = 1, 6 do
    local task = bandit.task(math.random() < 0.6 and "train" or "test")
    r1.push(messages, r1.user(prompt(task)))
    r1.push(messages, r1.assistant(`<answer>{task.arms[math.random(2)]}</answer>`))
  end
  return { messages = messages, format = "answer" }
end

local function rows(split, count, seed)
  return r1.data.generate { count = count, seed = seed, row = function() return bandit.task(split) end }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 400, batch_size = 24, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = rows("train", 100000, 1),
    -- The names of the second dataset do not occur in the rewards of training.
    eval = { seen = rows("train", 128, 2), unseen = rows("test", 128, 3) },
  },
  sampling = { max_new_tokens = 24 },
  -- Trajectories of a group have the same luck, so that each task has one trajectory here.
  trainer = r1.trainer { algorithm = "reinforce_pp", steps = 40, groups_per_step = 128, lr = 2e-4 },
  eval = { temperature = 1, limit = 128, accuracy = "risky" },
}
