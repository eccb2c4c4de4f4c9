--- GPG (arXiv:2504.02546): alpha (S - mean) / f_norm, where alpha is the number of trajectories
--- over the number of those whose return is not 0, in the whole batch. The loss is REINFORCE.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2504.02546",
  about = "return minus the mean of the group, times all returns over those not 0; as a loss `reinforce`",
  needs = { "groups" },
  options = { f_norm = { 1, above = 0 } },
  advantage = function(group, options)
    local count, not_zero = 0, 0
    for _, other in ipairs(group.batch) do
      for _, trajectory in ipairs(other) do
        count += 1
        if trajectory.total ~= 0 then not_zero += 1 end
      end
    end
    local alpha = count / math.max(not_zero, 1)
    local advantages = statistics.normalized(statistics.totals(group), "none", 0)
    for i, centred in ipairs(advantages) do advantages[i] = alpha * centred / options.f_norm end
    return advantages
  end,
  loss = "reinforce",
}
