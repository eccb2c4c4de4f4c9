--- RAPO of TableMind (arXiv:2509.06278): GRPO's advantages times a factor. A pair of a winner and a
--- loser has the factor 1 + bonus when the policy does not prefer the winner by margin yet, else 1;
--- the factor of a trajectory is the mean over its pairs. A winner has a return above threshold.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2509.06278",
  about = "`grpo` with a factor for pairs whose winner is not preferred yet",
  needs = { "groups", "logp" },
  options = {
    normalize = { "std", one_of = { "std", "population", "none" } },
    epsilon = { 1e-6, from = 0 },
    threshold = 1,
    margin = 0.5,
    bonus = 0.1,
  },
  advantage = function(group, options)
    local advantages = statistics.normalized(statistics.totals(group), options.normalize, options.epsilon)
    local function wins(trajectory) return trajectory.total > options.threshold end
    for i, trajectory in ipairs(group) do
      local sum, count = 0, 0
      for _, other in ipairs(group) do
        if wins(trajectory) ~= wins(other) then
          local lead = if wins(trajectory) then trajectory.logp - other.logp else other.logp - trajectory.logp
          sum += if lead < options.margin then 1 + options.bonus else 1
          count += 1
        end
      end
      if count > 0 then advantages[i] *= sum / count end
    end
    return advantages
  end,
}
