--- ALFWorld (arXiv:2010.03768), a household in text, over the server of AgentGym
--- (arXiv:2406.04151). Without a server a small household of this project. Trained by GiGPO
--- (arXiv:2505.10978), which compares the steps of a group that have the same observation.
---
---   r1 run scripts/alfworld.lua
---   r1 run scripts/alfworld.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false \
---     params.url=http://127.0.0.1:36001 data.train=games.jsonl data.eval=games_eval.jsonl

local demonstrations = require("@r1/demonstrations")
local env_http = require("@r1/env_http")
local household = require("./lib/household")

local params = r1.params {
  url = "", -- server of AgentGym's ALFWorld
  steps = 20, -- most replies of a trajectory
}
local SYSTEM = "You are in a household. End each reply with a line Action: and one action."

--- The action of a reply: the last line after "Action:". Replies without one are counted.
local function action_of(reply, state)
  local found
  for line in string.gmatch(reply.text, "Action:%s*([^\n]+)") do found = line end
  if found == nil then
    state.invalid = (state.invalid or 0) + 1
    return nil, "the reply has no line Action:"
  end
  return (string.gsub(found, "%s+$", ""))
end

--- The reward of a step, counted for the named parts.
local function earned(answer, state)
  state.won = math.max(state.won or 0, answer.reward or 0)
  return answer.reward or 0
end

local env
if params.url ~= "" then
  env = env_http {
    url = params.url, protocol = "agentgym", system = SYSTEM, max_steps = params.steps,
    action = action_of, reward = earned,
    reset = function(task) return { game = task.game, world_type = task.world_type or "Text" } end,
  }
else
  env = r1.env {
    max_steps = params.steps,
    reset = function(task)
      local world, text = household.start(task)
      return { task = task, world = world, messages = { r1.system(SYSTEM), r1.user(text) } }
    end,
    step = function(state, reply)
      r1.push(state.messages, r1.assistant(reply))
      local action, why = action_of(reply, state)
      local text, done = "Error: " .. (why or ""), false
      if action then text, done = household.act(state.world, state.task, action) end
      r1.push(state.messages, r1.user(text))
      return { reward = earned({ reward = done and 1 or 0 }, state), done = done }
    end,
  }
end

local function reward(state, outcome)
  local invalid = state.invalid or 0
  return {
    success = { value = state.won or 0, weight = 0 },
    invalid = invalid > 0 and -0.1 * invalid or 0, -- replies without an action
    steps = { value = outcome.steps, weight = 0 },
  }
end

--- Half of the demonstrations look at two places and may not find the thing, the others do the
--- task.
local function demonstration()
  local task = household.row()
  local world, text = household.start(task)
  local messages = { r1.user(text) }
  local function act(action)
    r1.push(messages, r1.assistant("Action: " .. action))
    r1.push(messages, r1.user((household.act(world, task, action))))
  end
  local other = household.row().from
  if math.random() < 0.5 then act(`go to {other}`) end
  if math.random() < 0.5 then
    for _, action in ipairs { `go to {task.from}`, `take {task.thing}`, `go to {task.to}`, `put {task.thing}` } do act(action) end
  else
    for _, action in ipairs { `take {task.thing}`, `go to {household.row().from}`, `put {task.thing}` } do act(action) end
  end
  messages[#messages] = nil
  return demonstrations.row(SYSTEM, {}, messages)
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 600, batch_size = 24, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = household.row },
    eval = r1.data.generate { count = 64, seed = 2, row = household.row },
  },
  sampling = { max_new_tokens = 32 },
  trainer = r1.grpo { estimator = "gigpo", steps = 40, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "success" },
  needs = params.url ~= "" and { params.url } or nil,
}
