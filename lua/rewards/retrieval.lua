--- Rewards for searches: recall, precision, and a reward of each search in a trajectory.

local check = require("@r1/options")

local retrieval = {}

-- The ids of a list without repetitions.
local function set(list)
  local ids, count = {}, 0
  for _, id in ipairs(list) do
    if not ids[id] then
      ids[id] = true
      count += 1
    end
  end
  return ids, count
end

--- Recall and precision of the ids that a search found; both are 0 if a list is empty.
function retrieval.recall(found, relevant)
  r1.reference(relevant, "recall", { empty = true })
  if found == nil then return 0, 0 end
  local ids = set(found)
  local wanted, count = set(relevant)
  local right = 0
  for id in pairs(wanted) do
    if ids[id] then right += 1 end
  end
  return count > 0 and right / count or 0, #found > 0 and right / #found or 0
end

--- The reward of one search in a trajectory: a gain for each relevant id that is new, a cost for
--- each id that an earlier search found already.
---
--- `options`: `seen` (ids of earlier searches), `gain` (1, divided by the number of relevant ids),
--- `repeat_cost` (0.1, for each repeated id), `miss_cost` (0, for each new id that is not
--- relevant).
---
--- Gamed by: without `miss_cost`, queries that return as many ids as allowed.
function retrieval.retrieval(found, relevant, options)
  options = check("retrieval", options, { "seen", "gain", "repeat_cost", "miss_cost" })
  r1.reference(relevant, "retrieval", { empty = true })
  if found == nil then return 0 end
  local seen = set(options.seen or {})
  local wanted, count = set(relevant)
  local gain = count > 0 and (options.gain or 1) / count or 0
  local reward = 0
  for id in pairs((set(found))) do
    if seen[id] then
      reward -= options.repeat_cost or 0.1
    elseif wanted[id] then
      reward += gain
    else
      reward -= options.miss_cost or 0
    end
  end
  return reward
end

return retrieval
