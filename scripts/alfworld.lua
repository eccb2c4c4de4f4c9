--- ALFWorld (arXiv:2010.03768), a household in text, over the server of AgentGym
--- (arXiv:2406.04151). Without a server a small household of this project. Trained by GiGPO
--- (arXiv:2505.10978), which compares the steps of a group that have the same observation.
---
---   r1 run scripts/alfworld.lua
---   r1 run scripts/alfworld.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false \
---     params.url=http://127.0.0.1:36001 data.train=games.jsonl data.eval=games_eval.jsonl

local env_http = require("@r1/env_http")
local household = require("./lib/household")

local params = r1.params {
  url = "", -- server of AgentGym's ALFWorld
  steps = 12, -- most replies of a trajectory
  history = 2, -- actions that the prompt repeats, with what was observed
}
local SYSTEM = "You are in a household. End each reply with a line Action: and one action."

--- The action of a reply: the last line after "Action:". Replies without one are counted.
local function action_of(reply, state)
  local found = string.match(reply.text, ".*Action:%s*([^\n]*%S)")
  state.actions = state.actions or {}
  r1.push(state.actions, found or "none")
  if found then return found end
  state.invalid = (state.invalid or 0) + 1
  return nil, "the reply has no line Action:"
end

--- The prompt instead of the conversation: the first text, the last actions, and the task again.
local function prompt(texts, actions)
  local lines = { texts[1] }
  for k = math.max(1, #actions - params.history + 1), #actions do r1.push(lines, `> {actions[k]}\n{texts[k + 1]}`) end
  if #actions > 0 then r1.push(lines, string.match(texts[1], "Your task.*")) end
  return { r1.system(SYSTEM), r1.user(table.concat(lines, "\n")) }
end

local function context(state)
  local texts = {}
  for _, message in ipairs(state.messages) do
    if message.role == "user" then r1.push(texts, message.content) end
  end
  return prompt(texts, state.actions or {})
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
    context = context, action = action_of, reward = earned,
    reset = function(task) return { game = task.game, world_type = task.world_type or "Text" } end,
  }
else
  env = r1.env {
    max_steps = params.steps, context = context,
    reset = function(task)
      local world, text = household.start(task)
      return { task = task, world = world, messages = { r1.user(text) } }
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

--- Single steps of a player who does something else in one of three steps.
local function demonstration()
  local texts, actions = household.walk(household.row(), math.random(params.steps), 0.67)
  local last = table.remove(actions)
  local messages = prompt(texts, actions)
  r1.push(messages, r1.assistant("Action: " .. last))
  return { messages = messages }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 800, batch_size = 32, lr = 1.5e-3, warmup = 50 },
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
