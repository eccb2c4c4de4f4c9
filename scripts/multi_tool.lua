--- Several tools in one task: a search over orders, SQL over a table of prices, a calculator. An
--- answer needs one call of each, and the tools are free to be called at once or one after another.
---
---   r1 run scripts/multi_tool.lua
---   r1 run scripts/multi_tool.lua policy.model=Qwen/Qwen2.5-3B-Instruct cold_start=false \
---     sampling.max_new_tokens=512 trainer.lr=1e-6

local calculator = require("@r1/calculator")
local demonstrations = require("@r1/demonstrations")
local rewards = require("@r1/rewards")
local search = require("@r1/search")

local SYSTEM = "Use the tools, then write the price after ####."
local PRICES = {
  { item = 101, price = 37 }, { item = 102, price = 43 }, { item = 103, price = 58 },
  { item = 104, price = 64 }, { item = 105, price = 76 }, { item = 106, price = 89 },
}

-- Orders are numbered 11 to 26, with 32 to 98 pieces of one item.
local orders, passages = {}, {}
for place = 1, 16 do
  local stock = PRICES[math.random(#PRICES)]
  local order = { name = `order {place + 10}`, item = stock.item, price = stock.price, count = math.random(32, 98) }
  orders[place] = order
  passages[place] = { title = order.name, text = `{order.count} pieces of item {order.item}.` }
end

local tools = {
  search.tool(passages, { k = 1, description = "Finds an order." }),
  r1.tools.table { tables = { prices = PRICES }, format = "csv", description = "Runs SQL." },
  calculator.tool(),
}

local function reward(state, outcome)
  local used = {}
  for _, message in ipairs(state.messages) do
    if message.role == "tool" then used[message.name] = 1 end
  end
  local kinds = 0
  for _ in pairs(used) do kinds += 1 end
  return {
    outcome = rewards.gsm8k(outcome.text, state.task.answer, { strict = true }),
    kinds = { value = kinds, weight = 0 },
    calls = { value = outcome.calls, weight = 0 },
  }
end

local function row()
  local order = orders[math.random(#orders)]
  return { question = `What does {order.name} cost?`, answer = order.count * order.price, order = order }
end

--- A third of the demonstrations call the three tools, the others guess at the end or at once.
local function demonstration()
  local task, kind = row(), math.random()
  local order, messages = task.order, { r1.user(task.question) }
  local function use(name, arguments, result)
    r1.push(messages, demonstrations.call(name, arguments))
    r1.push(messages, demonstrations.result(name, result))
  end
  if kind < 0.67 then
    use("search", { query = order.name }, search.text { { title = order.name, text = `{order.count} pieces of item {order.item}.` } })
    use("sql", { sql = `SELECT price FROM prices WHERE item = {order.item}` }, `price\n{order.price}`)
  end
  local product = `{order.count}*{order.price}`
  if kind < 0.33 then use("calculator", { expression = product }, tostring(task.answer)) end
  local answer = kind < 0.33 and task.answer or math.random(1000, 8000)
  r1.push(messages, r1.assistant(`#### {answer}`))
  return demonstrations.row(SYSTEM, tools, messages)
end

return r1.recipe {
  env = r1.env {
    tools = tools, system = SYSTEM, max_steps = 5, max_calls = 4, max_result_tokens = 256,
    call_rewards = { malformed = -0.1, refused = -0.1, failed = -0.05 },
  },
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 10000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 600, batch_size = 16, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = row },
    eval = r1.data.generate { count = 64, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 96 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "outcome" },
}
