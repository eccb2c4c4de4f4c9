--- Engine and networks of a device against the CPU in f32: r1 lua networks.lua DEVICE MODEL
---
--- Prints one JSON object per check: its name, the difference, and the limit. In bf16 equivalent
--- computations round differently, for single tokens by much, so means are compared.

local device, dir = arg[1], arg[2]

local function check(name, measured, limit)
  print(r1.json.encode { check = name, measured = measured, limit = limit })
end

--- Deterministic ids that every vocabulary has.
local function ids(count, seed)
  local list = {}
  for i = 1, count do
    list[i] = 3 + (i * 7919 + seed * 104729) % 240
  end
  return list
end

local function differences(a, b)
  local largest, sum = 0, 0
  for i = 1, #a do
    local difference = math.abs(a[i] - b[i])
    largest, sum = math.max(largest, difference), sum + difference
  end
  return sum / #a, largest
end

--- Mean and largest difference between the log-probabilities of a reply and the ones from a pass
--- over the whole sequence.
local function against_scored(model, prompt, reply)
  local whole = table.clone(prompt)
  for _, id in ipairs(reply.token_ids) do
    whole[#whole + 1] = id
  end
  local scored = model:logprobs(whole)
  return differences(reply.logprobs, table.move(scored, #prompt, #scored, 1, {}))
end

local cpu = r1.model(dir, { device = "cpu", dtype = "f32", max_context = 256 })
local single = r1.model(dir, { device = device, dtype = "f32", max_context = 256 })
local half = r1.model(dir, { device = device, dtype = "bf16", max_context = 256 })

local text = ids(128, 1)
local reference = cpu:logprobs(text)
local _, largest = differences(reference, single:logprobs(text))
check("log-probabilities in f32, largest difference", largest, 1e-3)
check("log-probabilities in bf16, mean difference", (differences(reference, half:logprobs(text))), 0.1)

local greedy = { temperature = 0, max_new_tokens = 64, ignore_eos = true }
local a, b = cpu:generate(ids(32, 2), greedy), single:generate(ids(32, 2), greedy)
local same = 0
while same < 64 and a.token_ids[same + 1] == b.token_ids[same + 1] do
  same = same + 1
end
check("greedy tokens in f32 after the first difference, of 64", 64 - same, 0)

for _, case in ipairs { { "f32", single, 1e-4, 1e-3 }, { "bf16", half, 0.1, 2 } } do
  local dtype, model, mean_limit, largest_limit = table.unpack(case)
  local prompt = ids(32, 3)
  local reply = model:generate(prompt, { seed = 1, max_new_tokens = 64, ignore_eos = true })
  local mean, most = against_scored(model, prompt, reply)
  check(`sampled against scored, {dtype}, mean difference`, mean, mean_limit)
  check(`sampled against scored, {dtype}, largest difference`, most, largest_limit)
end

-- Sequences of different lengths that start and end at different steps of one batch.
local jobs, replies = {}, {}
for place = 1, 13 do
  jobs[place] = function()
    local options = { seed = place, max_new_tokens = 7 * place, ignore_eos = true }
    replies[place] = half:generate(ids(5 + 11 * place, place), options)
  end
end
r1.join(jobs)
local mean, most = 0, 0
for place = 1, 13 do
  local own, own_largest = against_scored(half, ids(5 + 11 * place, place), replies[place])
  mean, most = math.max(mean, own), math.max(most, own_largest)
end
check("13 ragged replies at once against scored, bf16, largest mean of a reply", mean, 0.1)
check("13 ragged replies at once against scored, bf16, largest difference", most, 2)

-- Long contexts, where the model has them.
local config = r1.json.decode(r1.fs.read(dir .. "/config.json"))
if device == "cuda" and config.max_position_embeddings >= 8192 then
  local long = r1.model(dir, { device = device, dtype = "bf16", max_context = 8192 })
  for _, context in ipairs { 2048, 8192 } do
    local prompt = ids(context - 32, 4)
    local reply = long:generate(prompt, { seed = 1, max_new_tokens = 32, ignore_eos = true })
    check(`{context} tokens: sampled against scored, bf16, mean difference`, (against_scored(long, prompt, reply)), 0.1)
  end
end
