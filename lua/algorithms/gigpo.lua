--- GiGPO (arXiv:2505.10978): GRPO's advantage of the trajectory, and weight times the advantage of
--- the step: its discounted return, normalised among the steps of the group that begin in the same
--- state (eq. 7). Steps with equal observations begin in the same state, with the option similarity
--- also steps with similar ones. A step whose state no other step has gets 0.
local statistics = require("@r1/statistics")

-- The discounted return of each decision. Trajectories that share a step share its decision, whose
-- return is the mean over them.
local function decision_returns(group, gamma)
  local returns = {}
  for _, trajectory in ipairs(group) do
    for step, value in ipairs(statistics.discounted(trajectory.rewards, gamma)) do
      local decision = trajectory.decisions[step]
      returns[decision] = returns[decision] or {}
      table.insert(returns[decision], value)
    end
  end
  for decision, values in ipairs(returns) do
    returns[decision] = if #values == 1 then values[1] else (statistics.mean_std(values))
  end
  return returns
end

return r1.algorithm {
  paper = "arXiv:2505.10978",
  about = "`grpo`, and a comparison of steps with the same observation",
  needs = { "groups", "anchors" },
  level = "step",
  options = {
    gamma = { 0.95, from = 0, to = 1 },
    weight = { 1, from = 0 },
    mode = { "mean_std", one_of = { "mean_std", "mean" } },
    epsilon = { 1e-6, from = 0 },
    similarity = { false, from = 0, to = 1 },
  },
  advantage = function(group, options)
    local normalize = if options.mode == "mean" then "none" else "std"
    local whole = statistics.normalized(statistics.totals(group), normalize, options.epsilon)
    local returns, of_state = decision_returns(group, options.gamma), {}
    for decision, state in ipairs(group:states(options.similarity)) do
      of_state[state] = of_state[state] or { decisions = {}, returns = {} }
      table.insert(of_state[state].decisions, decision)
      table.insert(of_state[state].returns, returns[decision])
    end
    local by_step = table.create(#returns, 0)
    for _, steps in ipairs(of_state) do
      if #steps.decisions > 1 then
        local normalized = statistics.normalized(steps.returns, normalize, options.epsilon)
        for place, decision in ipairs(steps.decisions) do by_step[decision] = normalized[place] end
      end
    end
    local advantages = {}
    for i, trajectory in ipairs(group) do
      advantages[i] = {}
      for step, decision in ipairs(trajectory.decisions) do
        advantages[i][step] = whole[i] + options.weight * by_step[decision]
      end
    end
    return advantages
  end,
}
