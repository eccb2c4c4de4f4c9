--- WebShop (arXiv:2207.01206): find a product in a shop and buy it with the right options, over
--- AgentGym's server (arXiv:2406.04151), by default in a small shop of this project. The prompt is
--- the task, the last actions and the page, as in GiGPO (arXiv:2505.10978), the estimator.
---
---   r1 run scripts/webshop.lua
---   r1 run scripts/webshop.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false \
---     params.url=http://127.0.0.1:36003 data.train=goals.jsonl data.eval=goals_eval.jsonl

local env_http = require("@r1/env_http")
local shop = require("./lib/shop")

local params = r1.params {
  url = "", -- server of AgentGym's WebShop
  steps = 8, -- most replies of a trajectory
  history = 2, -- actions that the prompt repeats
}
local SYSTEM = "You are web shopping. End each reply with one action: search[words] or click[value]."

--- The action of a reply. Replies without one are counted; the shop does nothing and shows the same
--- page.
local function action_of(reply, state)
  local action = shop.action(reply.text)
  state.actions = state.actions or {}
  r1.push(state.actions, action or "none")
  if not action then state.invalid = (state.invalid or 0) + 1 end
  return action or "none"
end

--- The prompt: the last actions and the current page instead of the whole conversation.
local function context(state)
  local actions, last = state.actions or {}, state.messages[#state.messages]
  local recent = table.concat(actions, ", ", math.max(1, #actions - params.history + 1))
  local before = if #actions > 0 then `You did: {recent}\n` else ""
  return { r1.system(SYSTEM), r1.user(before .. last.content) }
end

local env
if params.url ~= "" then
  env = env_http {
    url = params.url, protocol = "agentgym", system = SYSTEM, max_steps = params.steps, context = context,
    reset = function(task) return { session_id = task.session_id } end,
    action = action_of,
    reward = function(answer, state)
      state.score = answer.reward
      return answer.reward
    end,
    observation = function(page, session)
      local found = r1.http.get(params.url:gsub("/+$", "") .. "/available_actions", { query = { env_idx = session } })
      local actions = found and r1.json.decode(found.body)
      return shop.page(page, type(actions) == "table" and actions.clickables or {})
    end,
  }
else
  env = r1.env {
    max_steps = params.steps, context = context,
    reset = function(task)
      local visit = shop.visit(task)
      return { task = task, visit = visit, messages = { r1.user(shop.text(visit)) } }
    end,
    step = function(state, reply)
      local score, done = shop.act(state.visit, state.task, action_of(reply, state))
      state.score = score
      r1.push(state.messages, r1.assistant(reply))
      r1.push(state.messages, r1.user(shop.page(shop.text(state.visit), shop.clickable(state.visit))))
      return { reward = score, done = done }
    end,
  }
end

local function reward(state, outcome)
  return {
    score = { value = state.score or 0, weight = 0 },
    success = { value = state.score == 1 and 1 or 0, weight = 0 },
    invalid = { value = state.invalid or 0, weight = -0.1 }, -- replies without an action
    steps = { value = outcome.steps, weight = 0 },
  }
end

--- Single steps of a customer who takes a wrong colour or product now and then.
local function demonstration()
  local task, state = shop.row(), { actions = {} }
  local visit, plan = shop.visit(task), shop.plan(task, { colour = 0.5, product = 0.2 })
  local place = math.random(#plan)
  for k = 1, place - 1 do
    r1.push(state.actions, plan[k])
    shop.act(visit, task, plan[k])
  end
  state.messages = { r1.user(shop.page(shop.text(visit), shop.clickable(visit))) }
  local messages = context(state)
  r1.push(messages, r1.assistant(plan[place]))
  return { messages = messages }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 50000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 1200, batch_size = 32, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = shop.row },
    eval = r1.data.generate { count = 64, seed = 2, row = shop.row },
  },
  sampling = { max_new_tokens = 32 },
  trainer = r1.grpo { estimator = "gigpo", steps = 80, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "success" },
  needs = params.url ~= "" and { params.url } or nil,
}
