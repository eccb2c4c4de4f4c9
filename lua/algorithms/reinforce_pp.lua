--- REINFORCE++ (arXiv:2501.03262): the discounted returns of sampled tokens, whitened over the
--- batch.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2501.03262",
  about = "discounted returns, whitened over the batch",
  remarks = "128 tasks, one sample each",
  level = "token",
  options = {
    gamma = { 1, from = 0, to = 1 },
    whiten = { "variance", one_of = { "std", "variance", "none" } },
  },
  advantage = function(group, options)
    local returns = {}
    for i, trajectory in ipairs(group) do
      returns[i] = statistics.discounted(trajectory.token_rewards, options.gamma)
    end
    return returns
  end,
  trainer = { group_size = 1, groups_per_step = 128 },
}
