--- Open answers, graded by a judge with a rubric (MT-Bench, arXiv:2306.05685): any model, or any
--- server with the chat API. By default the task is to greet somebody by name, and a rule takes the
--- place of the judge, so that the recipe runs without another model.
---
---   r1 run scripts/judge.lua
---   r1 run scripts/judge.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct \
---     params.judge=Qwen/Qwen2.5-7B-Instruct \
---     data.train=prompts.jsonl
---   OPENAI_API_KEY=… r1 run scripts/judge.lua params.url=https://api.openai.com/v1 \
---     params.judge=gpt-4.1-mini \
---     params.key=OPENAI_API_KEY params.votes=3

local rewards = require("@r1/rewards")

local params = r1.params {
  judge = "", -- a directory, a Hub id, or the server's name of the model
  url = "", -- base URL of a server
  key = "", -- environment variable with the server's key
  votes = 1,
  rubric = "The answer greets the person by name, politely, in one short sentence.",
}
local SYSTEM = "Answer in one short sentence."
local NAMES = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }

local model = params.judge
if params.url ~= "" then
  model = { url = params.url, name = params.judge, key = params.key ~= "" and r1.secret(params.key) or nil }
end

--- Half of the points for a greeting, half for the name: a stand-in for a judge.
local function rule(prompt)
  local name = prompt:match("<question>%s*Say hello to (%a+)%.%s*</question>")
  local response = prompt:match("<response>%s*(.-)%s*</response>")
  local greets, names = response:match("^Hello") ~= nil, name ~= nil and response:find(name, 1, true) ~= nil
  return `Score: {(greets and 5 or 0) + (names and 5 or 0)}`
end

local judge = rewards.judge {
  rubric = params.rubric,
  votes = params.votes,
  model = params.judge ~= "" and model or nil,
  ask = params.judge == "" and rule or nil,
}

local function reward(state, outcome)
  local question = state.messages[#state.messages - 1].content
  local score, votes = judge(question, outcome.text, state.task.answer)
  -- A trajectory without a grade fails, and is not counted as a bad answer.
  if score == nil then error("the judge gave no score: " .. votes, 0) end
  return {
    judge = score,
    perfect = { value = score == 1 and 1 or 0, weight = 0 },
    characters = { value = #outcome.text, weight = 0 },
  }
end

local function row() return { prompt = `Say hello to {NAMES[math.random(#NAMES)]}.` } end

--- Three in ten demonstrations use the name that they should.
local function demonstration()
  local name, other = NAMES[math.random(#NAMES)], NAMES[math.random(#NAMES)]
  local kind = math.random()
  local reply = kind < 0.3 and `Hello {name}!` or kind < 0.6 and `Hello {other}!` or "Hello!"
  return { messages = { r1.system(SYSTEM), r1.user(`Say hello to {name}.`), r1.assistant(reply) } }
end

local needs = {}
if params.url ~= "" then r1.push(needs, params.url) end
if params.key ~= "" then r1.push(needs, "env:" .. params.key) end

return r1.recipe {
  env = r1.env { system = SYSTEM, max_steps = 1 },
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 10000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 300, batch_size = 32, lr = 1e-3 },
  },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = row },
    eval = r1.data.generate { count = 64, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 16 },
  trainer = r1.grpo { steps = 60, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "perfect" },
  needs = needs,
}
