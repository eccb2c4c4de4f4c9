--- REINFORCE++ with the baseline of the group (arXiv:2501.03262): the return minus the mean of the
--- group, whitened over the sampled tokens of the batch. A group of one has mean 0.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2501.03262",
  about = "return minus the group's mean, whitened",
  needs = { "groups" },
  options = { whiten = { "variance", one_of = { "std", "variance", "none" } } },
  advantage = function(group)
    return statistics.normalized(statistics.totals(group), "none", 0)
  end,
}
