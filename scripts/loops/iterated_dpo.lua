--- Iterated DPO (arXiv:2305.18290 on pairs sampled from the policy, as in arXiv:2404.19733) as a
--- training loop in Lua: the best and the worst trajectory of each task are a pair.
---
---   r1 lua scripts/loops/iterated_dpo.lua scripts/retool.lua trainer.steps=20

local settings = {}
for place = 2, #arg do
  local key, value = arg[place]:match("^([^=]+)=(.*)$")
  settings[key] = tonumber(value) or value
end
local t = r1.training(arg[1] or "scripts/retool.lua", { name = "iterated-dpo", settings = settings })

-- The advantage is 1 on the tokens of the better trajectory and -1 on the tokens of the other; a
-- group is a pair.
local function dpo(b, options)
  local margin = (b.advantages * (b.logp - b.logp_ref)):sum("group")
  b:log("right", margin:gt(0))
  return b:seq_mean(-(options.beta * margin):log_sigmoid(), "group")
end

local function report(evaluation)
  if evaluation then print(("step %d: accuracy %.3f"):format(t.step, evaluation.accuracy)) end
end

report(t:evaluate())
while t.step < t.steps do
  local best, worst, pairs, signs = {}, {}, {}, {}
  for _, one in ipairs(t:rollout()) do
    if one.error == nil then
      if best[one.group] == nil or one.reward > best[one.group].reward then best[one.group] = one end
      if worst[one.group] == nil or one.reward < worst[one.group].reward then worst[one.group] = one end
    end
  end
  for group, one in best do
    if one.reward > worst[group].reward then
      table.insert(pairs, one)
      table.insert(pairs, worst[group])
      table.insert(signs, 1)
      table.insert(signs, -1)
    end
  end
  if #pairs > 0 then t:update(pairs, { loss = dpo, options = { beta = 0.1 }, advantages = signs }) end
  t:next_step { ["loop/pairs"] = #pairs / 2 }
end
report(t:evaluate())
print(t:save())
