-- The checks of `just gpu-check` on a CUDA machine: engine and networks compared with the CPU. In
-- bf16, equivalent computations round differently, for single tokens by much, so means are
-- compared. Usage: r1 lua gpu_check.lua MODEL ...   (every line is one check; the program fails if
-- one does)
local failed = 0

local function check(what, value, limit)
  local ok = value <= limit
  failed = failed + (ok and 0 or 1)
  print(string.format("| %s | %.2e | %.0e | %s |", what, value, limit, ok and "ok" or "FAILED"))
end

-- Ids in every vocabulary, deterministic.
local function ids(count, seed)
  local list = {}
  for i = 1, count do
    list[i] = 3 + (i * 7919 + seed * 104729) % 240
  end
  return list
end

local function worst(a, b)
  local most = 0
  for i = 1, #a do
    most = math.max(most, math.abs(a[i] - b[i]))
  end
  return most
end

local function mean(a, b)
  local sum = 0
  for i = 1, #a do
    sum = sum + math.abs(a[i] - b[i])
  end
  return sum / #a
end

print("| check | found | limit | |")
print("|---|---|---|---|")
for _, dir in ipairs(arg) do
  local name = string.match(dir, "[^/]+$")
  local cpu = r1.model(dir, { device = "cpu", dtype = "f32", max_context = 256 })
  local gpu = r1.model(dir, { device = "cuda", dtype = "f32", max_context = 256 })
  local half = r1.model(dir, { device = "cuda", dtype = "bf16", max_context = 256 })
  local text = ids(128, 1)
  local reference = cpu:logprobs(text)
  check(name .. ": log-probabilities, f32 on both, largest difference", worst(reference, gpu:logprobs(text)), 1e-3)
  check(name .. ": log-probabilities, bf16 against f32 on the CPU, mean difference", mean(reference, half:logprobs(text)), 0.1)

  local greedy = { temperature = 0, max_new_tokens = 64, ignore_eos = true }
  local a, b = cpu:generate(ids(32, 2), greedy), gpu:generate(ids(32, 2), greedy)
  local same = 0
  while same < 64 and a.token_ids[same + 1] == b.token_ids[same + 1] do
    same = same + 1
  end
  check(name .. ": greedy tokens that differ from the CPU's, of 64", 64 - same, 0)

  for _, pair in ipairs({ { "f32", gpu, 1e-4, 1e-3 }, { "bf16", half, 0.1, 2 } }) do
    local what, model = pair[1], pair[2]
    local reply = model:generate(ids(32, 3), { seed = 1, max_new_tokens = 64, ignore_eos = true })
    local whole = ids(32, 3)
    for _, id in ipairs(reply.token_ids) do
      whole[#whole + 1] = id
    end
    local scored = model:logprobs(whole)
    local own = table.move(scored, 32, #scored, 1, {})
    check(name .. ": sampled against scored, " .. what .. ", mean difference", mean(reply.logprobs, own), pair[3])
    check(name .. ": sampled against scored, " .. what .. ", largest difference", worst(reply.logprobs, own), pair[4])
  end
  -- A batch of different lengths: recorded decode steps, with fewer sequences as some end.
  local jobs, replies = {}, {}
  for place = 1, 13 do
    jobs[place] = function()
      replies[place] = half:generate(ids(5 + 11 * place, place), { seed = place, max_new_tokens = 7 * place, ignore_eos = true })
    end
  end
  r1.join(jobs)
  local most, means = 0, 0
  for place = 1, 13 do
    local whole, prompt = ids(5 + 11 * place, place), 5 + 11 * place
    for _, id in ipairs(replies[place].token_ids) do
      whole[#whole + 1] = id
    end
    local own = table.move(half:logprobs(whole), prompt, #whole - 1, 1, {})
    most, means = math.max(most, worst(replies[place].logprobs, own)), math.max(means, mean(replies[place].logprobs, own))
  end
  check(name .. ": 13 replies at once against scored, bf16, largest mean difference of a reply", means, 0.1)
  check(name .. ": 13 replies at once against scored, bf16, largest difference", most, 2)
end
os.exit(failed == 0 and 0 or 1)
