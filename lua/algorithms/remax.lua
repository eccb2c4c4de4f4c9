--- ReMax (arXiv:2310.10505): the return minus the return of a greedy rollout of the same task. With
--- reward_to_go the advantage of a token has the rewards from the token on instead of all (verl).
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2310.10505",
  about = "return minus that of a greedy rollout",
  remarks = "one sample per task, and a greedy baseline rollout",
  needs = { "greedy" },
  level = { "trajectory", reward_to_go = "token" },
  options = { reward_to_go = false },
  advantage = function(group, options)
    local advantages = {}
    for i, trajectory in ipairs(group) do
      advantages[i] = trajectory.total - group.greedy
      if options.reward_to_go then
        local returns = statistics.discounted(trajectory.token_rewards, 1)
        for k, to_go in ipairs(returns) do returns[k] = to_go - group.greedy end
        advantages[i] = returns
      end
    end
    return advantages
  end,
  trainer = { group_size = 1, groups_per_step = 128 },
}
