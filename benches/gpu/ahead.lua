--- Replies of different lengths that are sampled together: r1 lua ahead.lua DEVICE DTYPE MODEL
---
--- Prints the ids of each reply and its end. Greedy and sampled, with and without a stop string, a
--- penalty and cut-off tokens, more tokens than fit into a block of random numbers; some requests
--- join when others have ended.

local device, dtype, dir = arg[1], arg[2], arg[3]
local model = r1.model(dir, { device = device, dtype = dtype, max_context = 256 })

local function ids(count, seed)
  local list = {}
  for i = 1, count do
    list[i] = 3 + (i * 7919 + seed * 104729) % 240
  end
  return list
end

local jobs, replies = {}, {}
for place = 1, 24 do
  jobs[place] = function()
    local options = { seed = place, max_new_tokens = 1 + (place * 17) % 90, ignore_eos = true }
    if place % 3 == 0 then
      options.temperature = 0
    elseif place % 5 == 0 then
      options.stop = { "e" }
    end
    if place % 4 == 1 then
      options.top_k, options.top_p = 12, 0.95
    elseif place % 4 == 2 then
      options.repetition_penalty = 1.3
    end
    local reply = model:generate(ids(5 + (place * 11) % 60, place), options)
    replies[place] = { ids = reply.token_ids, reason = reply.finish_reason }
  end
end
r1.join(jobs)
print(r1.json.encode(replies))
