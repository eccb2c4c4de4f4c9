--- Updates for `just gpu-check`: the same weights, trajectories and settings on every device.
---
---   r1 lua updates.lua sample RUN SETTINGS               samples a step on the CPU, exports the
---                                                        model to RUN/export; prints {"ids": […]}
---   r1 lua updates.lua update RUN SETTINGS KIND FROM IDS updates a new run three times with the
---                                                        trajectories IDS of the run FROM; prints
---                                                        the metrics of each update, exports the
---                                                        model to RUN/export
---
--- SETTINGS and IDS are JSON. KIND is `policy` or `sft`.

local stage, run, settings = arg[1], arg[2], r1.json.decode(arg[3])
local folder, name = string.match(run, "^(.*)/([^/]+)$")
local t = r1.training("task.lua", { settings = settings, runs = folder, name = name })

if stage == "sample" then
  local ids = {}
  for place, trajectory in ipairs(t:rollout()) do
    ids[place] = trajectory.id
  end
  t:next_step()
  t:save(run .. "/export")
  print(r1.json.encode { ids = ids })
  return
end

local kind, from, ids = arg[4], arg[5], r1.json.decode(arg[6])
local stored = "/trajectories/step-000001.parquet"
r1.fs.write(run .. stored, r1.fs.read(from .. stored))
local examples = {
  { messages = { r1.user("Add 3 and 4."), r1.assistant("7") } },
  { messages = { r1.user("Count to ten."), r1.assistant("1, 2, 3, 4, 5, 6, 7, 8, 9, 10") } },
}
for _ = 1, 3 do
  local metrics
  if kind == "sft" then
    metrics = t:sft(examples)
  else
    metrics = t:update(ids)
  end
  print(r1.json.encode(metrics))
end
t:next_step()
t:save(run .. "/export")
