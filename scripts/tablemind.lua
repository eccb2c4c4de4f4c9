--- Questions over tables, after TableMind (arXiv:2509.06278): the policy plans in <think>, queries
--- the table, reflects on the result and answers in JSON. Trained by RAPO. By default small
--- generated tables, which r1-nano learns to query.
---
---   r1 run scripts/tablemind.lua
---   r1 eval scripts/tablemind.lua --model runs/tablemind params.plans=8     a vote of 8 attempts
---   r1 run scripts/tablemind.lua policy.model=Qwen/Qwen3-4B-Instruct-2507 \
---     cold_start=false data.train=wtq.jsonl data.eval=wtq_eval.jsonl params.shown=5

local demonstrations = require("@r1/demonstrations")
local reward_tables = require("@r1/rewards/tables")
local sql = require("@r1/formats/sql")
local stock = require("./lib/stock")
local tables = require("@r1/tables")
local tasks = require("@r1/tasks")
local vote = require("@r1/vote")

local params = r1.params {
  shown = 1, -- rows of the table in the prompt
  plans = 1, -- independent attempts, of which the majority's answer counts; for evaluation
  decay = 0.015, -- decay per step of the reward for efficiency
  tool = 0.5, -- what a successful query adds to a correct answer
  cost = 0.01, -- times the square of the number of steps
}
local SYSTEM = 'Plan, query, reflect, then answer as ```json {"answer": ["…"]}```.'
local STEPS = 4

local tool = r1.tools.table { column = "table", format = "csv", max_rows = 20, output_bytes = 1024 }

--- The first messages: the question and the head of the table.
local function prompt(task)
  return { r1.system(SYSTEM), r1.user(tasks.question(task) .. "\n" .. tables.text(tables.of(task), params.shown)) }
end

--- The answers of a reply as a text that a vote can compare.
local function answer(text)
  local list = reward_tables.json_answer(text)
  if list then table.sort(list) end
  return list and r1.json.encode(list)
end

local function reward(state, outcome)
  local successes = state.successes or 0
  for _, message in ipairs(params.plans == 1 and state.messages or {}) do
    if message.role == "tool" and not message.content:find("^Error") then successes += 1 end
  end
  local chosen = params.plans > 1 and state.voted or answer(outcome.text)
  local correct = reward_tables.multiset_match(chosen and r1.json.decode(chosen), tasks.references(state.task))
  return {
    format = reward_tables.json_format(outcome.text),
    accuracy = correct,
    efficiency = correct * reward_tables.efficiency {
      steps = outcome.steps / params.plans, successes = successes,
      decay = params.decay, tool = params.tool, cost = params.cost,
    },
    queries = { value = successes, weight = 0 },
    agreement = params.plans > 1 and { value = state.agreement or 0, weight = 0 } or nil,
  }
end

local env
if params.plans > 1 then
  local flow = vote.flow { attempts = params.plans, steps = STEPS, prompt = prompt, answer = answer }
  env = r1.env { tools = { tool }, format = sql, max_steps = STEPS * params.plans, flow = flow }
else
  env = r1.env {
    tools = { tool }, format = sql, max_steps = STEPS, call_rewards = { malformed = -0.1 },
    reset = function(task) return { task = task, messages = prompt(task) } end,
  }
end

--- Of the demonstrations half answer from the right query, of which some count the rows first;
--- three in ten use a wrong query, and the others guess.
local function demonstration()
  local task, kind = stock.row(), math.random()
  local solution, messages = task.solution, prompt(task)
  local function query(statement, result)
    r1.push(messages, demonstrations.call("sql", { sql = statement }, `<think>{solution.plan}</think>`))
    r1.push(messages, demonstrations.result("sql", result))
  end
  if kind < 0.15 then query("SELECT count(*) FROM t", `count(*)\n{#task.table.rows}`) end
  local found = tostring(math.random(10, 98))
  if kind < 0.8 then
    local right = kind < 0.5
    found = right and solution.result or solution.bad_result
    local statement = right and solution.query or solution.bad_query
    query(statement, `{statement:match("^SELECT (%S+)")}\n{found}`)
  end
  r1.push(messages, r1.assistant(`<think>{found}</think>\n\`\`\`json\n\{"answer": ["{found}"]}\n\`\`\``))
  return demonstrations.row(nil, { tool }, messages)
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 1000, batch_size = 24, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = stock.row },
    eval = r1.data.generate { count = 128, seed = 2, row = stock.row },
  },
  sampling = { max_new_tokens = 80 },
  trainer = r1.grpo { estimator = "rapo", steps = 60, group_size = 8, groups_per_step = 8, lr = 2e-4, clip = { 0.2, 0.28 } },
  eval = { temperature = 1, accuracy = "accuracy" },
}
