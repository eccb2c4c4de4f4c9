--- Tools of an MCP server (docs/guide/mcp.md). By default the server is
--- scripts/lib/units_server.py,
--- which converts units; params.command and params.url name another one.
---
---   r1 check scripts/mcp.lua                  starts the server and lists its tools
---   r1 run scripts/mcp.lua
---   r1 run scripts/mcp.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct cold_start=false \
---     trainer.lr=1e-6
---   r1 infer --script scripts/mcp.lua --model MODEL params.command="npx -y \
---     @modelcontextprotocol/server-filesystem ."

local demonstrations = require("@r1/demonstrations")
local rewards = require("@r1/rewards")
local units = require("./lib/units")

local OWN = "python3 lib/units_server.py"
local params = r1.params {
  command = OWN, -- program and arguments of a server
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

--- Half of the demonstrations call the tool, the others guess.
local function demonstration()
  local task = units.row()
  local messages, answer = { r1.user(task.question) }, task.answer
  if math.random() < 0.5 then
    local arguments = { amount = task.amount, from = task.from, to = task.to }
    r1.push(messages, demonstrations.call("convert", arguments))
    r1.push(messages, demonstrations.result("convert", tostring(answer)))
  else
    answer = units.row().answer
  end
  r1.push(messages, r1.assistant(`#### {answer}`))
  local row = demonstrations.row(SYSTEM, {}, messages)
  row.tools = units.tools
  return row
end

--- A server lists its tools after the script is loaded, so that demonstrations need their schemas
--- in the script: there are some for its own server only.
local own = params.url == "" and params.command == OWN

return r1.recipe {
  env = r1.env { tools = { r1.tools.mcp(server) }, system = SYSTEM, max_steps = 4, call_rewards = { malformed = -0.1 } },
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = own and {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 1000, batch_size = 16, lr = 1.5e-3, warmup = 50 },
  } or nil,
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = units.row },
    eval = r1.data.generate { count = 64, seed = 2, row = units.row },
  },
  sampling = { max_new_tokens = 96 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "outcome" },
  needs = { need },
}
