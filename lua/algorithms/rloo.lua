--- RLOO (arXiv:2402.14740): the return minus the mean of the others in the group, which is
--- n / (n - 1) (S - mean). A group of one keeps its return.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2402.14740",
  about = "return minus the mean of the others in the group",
  needs = { "groups" },
  advantage = function(group)
    local returns = statistics.totals(group)
    local n = #returns
    if n == 1 then return returns end
    local mean = statistics.mean_std(returns)
    local advantages = {}
    for i, total in ipairs(returns) do advantages[i] = n / (n - 1) * (total - mean) end
    return advantages
  end,
}
