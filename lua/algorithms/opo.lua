--- OPO (arXiv:2505.23585): the return minus the baseline of least variance, the mean over the group
--- weighted by length. A group of one keeps its return.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2505.23585",
  about = "return minus the baseline of least variance",
  needs = { "groups" },
  advantage = function(group)
    local returns = statistics.totals(group)
    if #returns == 1 then return returns end
    local smallest, length, above = math.huge, 0, 0
    for _, total in ipairs(returns) do smallest = math.min(smallest, total) end
    for i, trajectory in ipairs(group) do
      local tokens = 0
      for _, sampled in ipairs(trajectory.tokens) do tokens += sampled end
      length += tokens
      -- A difference from the smallest, so that equal returns give exactly 0.
      above += tokens * (returns[i] - smallest)
    end
    local baseline = smallest + above / math.max(length, 1)
    local advantages = {}
    for i, total in ipairs(returns) do advantages[i] = total - baseline end
    return advantages
  end,
}
