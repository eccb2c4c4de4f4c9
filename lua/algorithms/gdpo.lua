--- GDPO (arXiv:2601.05242): each named part of the reward is normalised within its group as in
--- GRPO, and the weighted sum is whitened over the sampled tokens of the batch. A part with large
--- numbers then has the same weight as a part with small ones. Without weights every part counts
--- with 1; with weights, parts that they do not name are left out.
local statistics = require("@r1/statistics")

-- The weights of all parts of the batch.
local function equal_weights(batch)
  local weights = {}
  for _, group in ipairs(batch) do
    for _, trajectory in ipairs(group) do
      for name in trajectory.parts do weights[name] = 1 end
    end
  end
  return weights
end

return r1.algorithm {
  paper = "arXiv:2601.05242",
  about = "the named parts of the reward, each normalised separately",
  remarks = "each named part of the reward is normalised separately",
  needs = { "groups", "parts" },
  options = {
    normalize = { "std", one_of = { "std", "population", "none" } },
    epsilon = { 1e-6, from = 0 },
    whiten = { "variance", one_of = { "std", "variance", "none" } },
    weights = { {} },
  },
  advantage = function(group, options)
    local weights = if next(options.weights) then options.weights else equal_weights(group.batch)
    local names, sums = {}, table.create(#group, 0)
    for name in weights do table.insert(names, name) end
    table.sort(names)
    if #names == 0 then
      group:refuse(
        1,
        "`gdpo` normalises the named parts of the reward, and there are none",
        "let the reward be a table, such as { correct = 1, format = 0.5 }"
      )
    end
    for _, name in ipairs(names) do
      local values = {}
      for i, trajectory in ipairs(group) do
        values[i] = trajectory.parts[name] or group:refuse(i, "the reward has no part `" .. name .. "`")
      end
      for i, value in ipairs(statistics.normalized(values, options.normalize, options.epsilon)) do
        sums[i] += weights[name] * value
      end
    end
    return sums
  end,
}
