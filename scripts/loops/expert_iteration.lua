--- Expert iteration (arXiv:1705.08439, and STaR, arXiv:2203.14465) as a training loop in Lua:
--- samples, keeps correct replies, and raises their likelihood.
---
---   r1 lua scripts/loops/expert_iteration.lua scripts/retool.lua trainer.steps=20

local settings = {}
for place = 2, #arg do
  local key, value = arg[place]:match("^([^=]+)=(.*)$")
  settings[key] = tonumber(value) or value
end
local t = r1.training(arg[1] or "scripts/retool.lua", { name = "expert-iteration", settings = settings })

local function likelihood(b)
  return b:token_mean(-b.logp)
end

local function report(evaluation)
  if evaluation then print(("step %d: accuracy %.3f"):format(t.step, evaluation.accuracy)) end
end

report(t:evaluate())
while t.step < t.steps do
  local all, kept = t:rollout(), {}
  for _, trajectory in ipairs(all) do
    if trajectory.reward > 0 then table.insert(kept, trajectory) end
  end
  if #kept > 0 then t:update(kept, { loss = likelihood }) end
  t:next_step { ["loop/kept"] = #kept / #all }
end
report(t:evaluate())
print(t:save())
