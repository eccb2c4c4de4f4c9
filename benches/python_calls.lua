--- The time of a reward in Python beside one in Lua, for one caller: the rewards of
--- scripts/verl_reward.lua and scripts/gsm8k.lua on the same reply (docs/guide/python.md).
---
---   just bench-python            or: r1 lua benches/python_calls.lua

local CALLS, ROUNDS = 2000, 5
local REPLY = "48/2=24\n48+24=72\n#### 72"

local function attempt(path, task)
  local own = r1.script(path):reset { task = task }
  own:step(REPLY)
  if own:reward() ~= 1 then error(`{path}: the reward is not 1`) end
  return own
end

local question = "Natalia sold 48 clips in April and half as many in May. How many in all?"
local sides = {
  { name = "Lua", own = attempt("scripts/gsm8k.lua", { question = question, answer = `{REPLY}` }), times = {} },
  {
    name = "Python",
    own = attempt("scripts/verl_reward.lua", {
      data_source = "openai/gsm8k", prompt = { r1.user(question) }, reward_model = { ground_truth = "72" },
    }),
    times = {},
  },
}

for _ = 1, ROUNDS do
  for _, side in ipairs(sides) do
    local start = os.clock()
    for _ = 1, CALLS do side.own:reward() end
    table.insert(side.times, (os.clock() - start) / CALLS * 1e6)
  end
end
for _, side in ipairs(sides) do
  table.sort(side.times)
  print(string.format("%-7s %6.0f µs a reward (median of %d rounds of %d; %.0f to %.0f)",
    side.name, side.times[ROUNDS // 2 + 1], ROUNDS, CALLS, side.times[1], side.times[ROUNDS]))
end
