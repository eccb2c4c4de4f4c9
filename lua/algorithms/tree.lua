--- Advantages at the branch points of a tree (trainer.branch). The value V of a step is the mean
--- return of the trajectories that go through it. Steps that the same trajectories go through are a
--- segment, and A = (1 - local) (V - V_group) + local (V - V_before), over the deviation of the
--- group's returns, where V_before is the value of the segment before (V_group for the first).
--- local = 0.5 is the sum of TreeRL (arXiv:2506.11902) without the factor 2; its down-weighting of
--- segments in many samples is not needed here, because a shared step is trained once. local = 1
--- compares with the state before the step, as VinePPO (arXiv:2410.01679) does. Without shared
--- steps the result equals grpo.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2506.11902",
  about = "values of shared steps in a tree of branches",
  remarks = "with `trainer.branch`",
  needs = { "groups" },
  level = "step",
  options = {
    ["local"] = { 0.5, from = 0, to = 1 },
    normalize = { "std", one_of = { "std", "population", "none" } },
    epsilon = { 1e-6, from = 0 },
  },
  advantage = function(group, options)
    local centre, scale = statistics.centre(statistics.totals(group), options.normalize, options.epsilon)
    local through = {}
    for _, trajectory in ipairs(group) do
      for _, decision in ipairs(trajectory.decisions) do
        through[decision] = through[decision] or {}
        table.insert(through[decision], trajectory.total)
      end
    end
    local advantages = {}
    for i, trajectory in ipairs(group) do
      local before, value, count = centre, centre, #group
      advantages[i] = {}
      for step, decision in ipairs(trajectory.decisions) do
        local totals = through[decision]
        if #totals < count then
          before, count = value, #totals
        end
        value = statistics.mean_std(totals)
        local overall = value - centre
        advantages[i][step] = (overall + options["local"] * ((value - before) - overall)) / scale
      end
    end
    return advantages
  end,
}
