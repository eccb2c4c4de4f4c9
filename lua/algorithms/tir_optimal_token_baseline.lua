--- The baseline of least variance per token for responses with tool calls, as in verl 0.9.1: tokens
--- with as many sampled tokens before them are compared.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "verl 0.9.1",
  about = "the same, per number of tokens before",
  remarks = "a baseline per token",
  needs = { "groups", "squares" },
  level = "token",
  options = { zero_tail = true, epsilon = { 1e-8, from = 0 } },
  advantage = function(group, options)
    local function times(trajectory)
      local numbers = {}
      for k in ipairs(trajectory.token_rewards) do numbers[k] = k end
      return numbers
    end
    return statistics.token_baseline(group, options.zero_tail, options.epsilon, times)
  end,
}
