-- Prompt and response ids of every step of a run, as JSON: r1 lua tests/readers/ids.lua RUN
local all = {}
for _, trajectory in r1.store.trajectories(..., nil, { ids = true }) do
  for _, step in trajectory.steps do
    table.insert(all, { step.prompt_ids, step.response_ids })
  end
end
print(r1.json.encode(all))
