--- MaxRL (arXiv:2602.02710): the return minus the mean of the group, over that mean, which is the
--- gradient of the logarithm of the success rate for returns of 0 and 1. A group of one keeps its
--- return; a group without success gives 0.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2602.02710",
  about = "return minus the mean of the group, over that mean",
  needs = { "groups" },
  options = { epsilon = { 1e-6, from = 0 } },
  advantage = function(group, options)
    local returns = statistics.totals(group)
    for i, total in ipairs(returns) do
      if total < 0 then group:refuse(i, "`max_rl` divides by the mean reward, and needs rewards of at least 0") end
    end
    if #returns == 1 then return returns end
    local mean = statistics.mean_std(returns)
    local advantages = {}
    for i, total in ipairs(returns) do advantages[i] = (total - mean) / (mean + options.epsilon) end
    return advantages
  end,
}
