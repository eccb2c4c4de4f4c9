--- Tools of an MCP server (docs/mcp.md). By default the server is scripts/lib/units_server.py,
--- which converts units; params.command and params.url name another one.
---
---   r1 check scripts/mcp.lua                  starts the server and lists its tools
---   r1 run scripts/mcp.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct trainer.lr=1e-6
---   r1 infer --script scripts/mcp.lua --model MODEL params.command="npx -y \
---     @modelcontextprotocol/server-filesystem ."

local rewards = require("@r1/rewards")

local params = r1.params {
  command = "python3 lib/units_server.py", -- program and arguments of a server
  url = "", -- or a server over HTTP
}
local SYSTEM = "Use the tools, then write the final number after ####."

local command = string.split(params.command, " ")
local server = params.url ~= "" and { url = params.url } or { command = command }
local need = params.url ~= "" and "http:" .. (params.url:match("^%w+://([^/]+)") or params.url) or "process:" .. command[1]

local function reward(state, outcome)
  local failed = 0
  for _, message in ipairs(state.messages) do
    if message.role == "tool" and message.content:find("^Error") then failed += 1 end
  end
  return {
    outcome = rewards.gsm8k(outcome.text, state.task.answer, { strict = true }),
    calls = { value = outcome.calls, weight = 0 },
    failed = { value = failed, weight = 0 },
  }
end

local UNITS = { { "miles", "kilometres", 1.609344 }, { "pounds", "kilograms", 0.45359237 }, { "gallons", "litres", 3.785411784 } }

local function row()
  local unit, amount = UNITS[math.random(#UNITS)], math.random(12, 98)
  return {
    question = `How many {unit[2]} are {amount} {unit[1]}? Round to two decimals.`,
    answer = math.floor(amount * unit[3] * 100 + 0.5) / 100,
  }
end

return r1.recipe {
  env = r1.env { tools = { r1.tools.mcp(server) }, system = SYSTEM, max_steps = 4, call_rewards = { malformed = -0.1 } },
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = row },
    eval = r1.data.generate { count = 64, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 256 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 8, lr = 1e-6 },
  eval = { temperature = 1, accuracy = "outcome" },
  needs = { need },
}
