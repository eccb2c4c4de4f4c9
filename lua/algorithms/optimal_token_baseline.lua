--- The baseline of least variance per token, as in verl 0.9.1: tokens at the same place of the
--- responses are compared; the environment's tokens between them count.
local statistics = require("@r1/statistics")

return r1.algorithm {
  paper = "verl 0.9.1",
  about = "a baseline of least variance per token",
  remarks = "a baseline per token",
  needs = { "groups", "squares" },
  level = "token",
  options = { zero_tail = true, epsilon = { 1e-8, from = 0 } },
  advantage = function(group, options)
    local function times(trajectory) return trajectory.token_positions end
    return statistics.token_baseline(group, options.zero_tail, options.epsilon, times)
  end,
}
