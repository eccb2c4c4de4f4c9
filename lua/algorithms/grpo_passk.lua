--- Pass@k in the form of GRPO (arXiv:2503.19595): only the best of a group has an advantage, its
--- lead over the second. A tie at the top and a group of one give 0.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "arXiv:2503.19595",
  about = "the best of a group against the second best",
  needs = { "groups" },
  options = {
    normalize = { "std", one_of = { "std", "population", "none" } },
    epsilon = { 1e-6, from = 0 },
  },
  advantage = function(group, options)
    local returns = statistics.totals(group)
    local advantages, best, second = table.create(#returns, 0), 1, -math.huge
    if #returns == 1 then return advantages end
    for i, total in ipairs(returns) do
      if total > returns[best] then best = i end
    end
    for i, total in ipairs(returns) do
      if i ~= best then second = math.max(second, total) end
    end
    local _, scale = statistics.centre(returns, options.normalize, options.epsilon)
    advantages[best] = (returns[best] - second) / scale
    return advantages
  end,
}
