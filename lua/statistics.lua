--- Statistics of the trajectories of a group, for functions `advantage`
--- (docs/guide/your-own-algorithm.md). Sums have a fixed order, so that the order of the
--- trajectories changes no bit of a result.
local statistics = {}

--- The mean of numbers, and their standard deviation with n - 1. Numbers are summed in sorted
--- order, as differences from the smallest: the mean of equal numbers is exactly their value.
function statistics.mean_std(values)
  local sorted = table.clone(values)
  table.sort(sorted)
  local n, base, above, squares = #sorted, sorted[1], 0, 0
  for _, value in ipairs(sorted) do above += value - base end
  local mean = base + above / n
  for _, value in ipairs(sorted) do squares += (value - mean) * (value - mean) end
  return mean, math.sqrt(squares / (n - 1))
end

--- The mean of a group and the divisor of the differences from it: the standard deviation with n -
--- 1 ("std") or with n ("population") plus epsilon, or 1 ("none"). A single value has the mean 0
--- and the deviation 1.
function statistics.centre(values, normalize, epsilon)
  local n, mean, deviation = #values, 0, 1
  if n > 1 then
    mean, deviation = statistics.mean_std(values)
    if normalize == "population" then deviation *= math.sqrt((n - 1) / n) end
  end
  return mean, if normalize == "none" then 1 else deviation + epsilon
end

--- GRPO's advantages of a group (arXiv:2402.03300): (value - mean) / divisor, as `centre` has them.
function statistics.normalized(values, normalize, epsilon)
  local mean, scale = statistics.centre(values, normalize, epsilon)
  local advantages = {}
  for i, value in ipairs(values) do advantages[i] = (value - mean) / scale end
  return advantages
end

--- The returns of the trajectories of a group: the sum of the rewards of each.
function statistics.totals(group)
  local totals = {}
  for i, trajectory in ipairs(group) do totals[i] = trajectory.total end
  return totals
end

--- The discounted returns of one trajectory: G[t] = rewards[t] + gamma * G[t + 1].
function statistics.discounted(rewards, gamma)
  local returns = table.clone(rewards)
  for t = #returns - 1, 1, -1 do returns[t] += gamma * returns[t + 1] end
  return returns
end

-- The longest trajectory by sampled tokens, if there is only one, and the length of the second.
local function longest(group)
  local best, length, second = nil, -1, -1
  for i, trajectory in ipairs(group) do
    local tokens = #trajectory.token_rewards
    if tokens > length then
      best, length, second = i, tokens, length
    elseif tokens > second then
      second = tokens
    end
  end
  return if length > second then best else nil, second
end

--- Advantages by token with the baseline of least variance: A[t] = G[t] - B[t] with the rewards to
--- go G. Over the trajectories of the group that have a token at time t, B[t] = sum of G[t] W[t] /
--- (sum of W[t] + epsilon). W[t] is the squared norm of the score function summed up to t,
--- approximated by the part of the output layer. `times(trajectory)` is the time of each token.
--- With `zero_tail` the tokens of the longest trajectory beyond the length of the second longest
--- have no baseline; a group of one has none.
function statistics.token_baseline(group, zero_tail, epsilon, times)
  local advantages, weighted, weights = {}, {}, {}
  for i, trajectory in ipairs(group) do
    local to_go, sum = statistics.discounted(trajectory.token_rewards, 1), 0
    for k, time in ipairs(times(trajectory)) do
      sum += 1 - 2 * math.exp(trajectory.token_logp[k]) + trajectory.token_squares[k]
      weighted[time] = (weighted[time] or 0) + to_go[k] * sum
      weights[time] = (weights[time] or 0) + sum
    end
    advantages[i] = to_go
  end
  if #group == 1 then return advantages end
  local tail, from = longest(group)
  for i, trajectory in ipairs(group) do
    for k, time in ipairs(times(trajectory)) do
      if not (zero_tail and i == tail and time > from) then
        advantages[i][k] -= weighted[time] / (weights[time] + epsilon)
      end
    end
  end
  return advantages
end

return statistics
