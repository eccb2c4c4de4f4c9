--- Warnings about the metrics of a run (docs/reference/metrics.md): known failure modes of
--- reinforcement learning, each reported once, and runs whose first steps have no learning signal.
--- The host calls these functions after every step.

-- Share of correct trajectories above which equal rewards and a low entropy are no failure.
local SOLVED = 0.8
-- Number of first steps, whose mean is the baseline of later ones.
local BASELINE_STEPS = 5
-- Share of the baseline below which a metric has collapsed.
local COLLAPSED = 0.1
-- Steps of several updates without a clipped token after which a run warns.
local UNCLIPPED_STEPS = 20

local function percent(share) return string.format("%.0f%%", share * 100) end

local function is_solved(metrics) return (metrics["rollout/accuracy"] or 0) > SOLVED end

-- Consecutive steps with several updates per rollout in which nothing was clipped.
local unclipped = 0

-- The values of the first steps by metric: their number and sum.
local baselines = {}

-- `value` as a share of the first steps' mean; nil during the first steps.
local function share_of_baseline(metric, value)
  local baseline = baselines[metric] or { count = 0, sum = 0 }
  baselines[metric] = baseline
  if baseline.count < BASELINE_STEPS then
    baseline.count += 1
    baseline.sum += value
    return nil
  end
  return if baseline.sum > 0 then value / (baseline.sum / baseline.count) else nil
end

-- A row has a name, the metric that it reads, and `warning`, which returns the message for a value
-- of it and the metrics of the step, or nil. Rows of one name are reported once together.
local ROWS = {
  {
    name = "entropy",
    metric = "policy/entropy",
    warning = function(entropy, metrics)
      local share = share_of_baseline("policy/entropy", entropy)
      if not share or share >= COLLAPSED or is_solved(metrics) then return nil end
      return string.format("entropy is %.4f, %s of the first steps'", entropy, percent(share))
        .. ": the policy no longer explores; lower trainer.lr, raise trainer.clip's second number, or give "
        .. "trainer.entropy"
    end,
  },
  {
    name = "echo",
    metric = "reward/group_std",
    warning = function(deviation, metrics)
      local share = share_of_baseline("reward/group_std", deviation)
      if not share or share >= COLLAPSED or is_solved(metrics) then return nil end
      return string.format("rewards within a group differ by %.4f, %s of the first steps'", deviation, percent(share))
        .. `, at an accuracy of {percent(metrics["rollout/accuracy"] or 0)} (the echo trap, arXiv:2504.20073); try `
        .. "trainer.filter.keep or trainer.filter.uniform"
    end,
  },
  {
    name = "clipped",
    metric = "policy/clip_frac",
    warning = function(clipped)
      if clipped <= 0.5 then return nil end
      return `{percent(clipped)} of the tokens are clipped: the updates of one rollout are too large; lower trainer.lr, `
        .. "trainer.epochs or trainer.mini_batches"
    end,
  },
  {
    name = "unclipped",
    metric = "policy/clip_frac",
    warning = function(clipped, metrics)
      unclipped = if clipped == 0 and (metrics["policy/updates"] or 0) > 1 then unclipped + 1 else 0
      if unclipped ~= UNCLIPPED_STEPS then return nil end
      return `nothing has been clipped for {UNCLIPPED_STEPS} steps of several updates: trainer.lr may be too small`
    end,
  },
  {
    name = "branches",
    metric = "rollout/branches",
    warning = function(branches)
      if branches > 0 then return nil end
      return "no trajectory had a state to branch from: all start at the task; check trainer.branch.at"
    end,
  },
  {
    name = "kl",
    metric = "policy/approx_kl",
    warning = function(kl)
      if kl <= 0.5 then return nil end
      return string.format("the updates of one rollout changed the policy by a KL of %.2f per token", kl)
        .. "; lower trainer.lr or trainer.epochs"
    end,
  },
  {
    name = "kl",
    metric = "kl/mean",
    warning = function(kl)
      if kl <= 10 then return nil end
      return string.format("the KL to the reference policy is %.1f per token; raise trainer.kl.coef", kl)
    end,
  },
  {
    name = "one token",
    metric = "policy/largest_token",
    warning = function(share, metrics)
      if share <= 0.5 or (metrics["policy/tokens"] or 0) <= 50 then return nil end
      return `one token has {percent(share)} of the policy gradient; check its trajectory, or use a loss that bounds `
        .. "ratios (trainer.loss.dual_clip)"
    end,
  },
}

local warnings = {}

local reported = {}

-- The new warnings about the metrics of a step.
function warnings.of_step(metrics)
  local new = {}
  for _, row in ipairs(ROWS) do
    local value = metrics[row.metric]
    -- Neither NaN nor infinite.
    local warning = value and math.abs(value) < math.huge and row.warning(value, metrics)
    if warning and not reported[row.name] then
      reported[row.name] = true
      table.insert(new, warning)
    end
  end
  return new
end

-- The reason why a step with an update trained no token, at the first such step.
function warnings.untrained(metrics)
  if reported.untrained or metrics["policy/updates"] ~= 0 or metrics["policy/skipped"] ~= 0 then return nil end
  reported.untrained = true
  if metrics["rollout/failed_share"] == 1 then return "all trajectories failed" end
  if not metrics["advantage/mean"] then return "no trajectory without failure has a sampled token" end
  if metrics["reward/uniform_groups"] == 1 then return "the trajectories of each group earned the same reward" end
  return "every advantage is 0"
end

-- The problem of the first steps of a run, if there is one: { steps, critic, tools, max_new_tokens
-- }, where `steps` has the metrics of each. With a critic trajectories are compared across the
-- batch, otherwise as the estimator does.
function warnings.of_first_steps(run)
  local differed, called, ended, accuracy = false, false, false, 0
  local low, high = math.huge, -math.huge
  for _, metrics in ipairs(run.steps) do
    local function get(name) return metrics[name] or 0 end
    local spread = if run.critic then get("reward/std") else math.max(get("advantage/max"), -get("advantage/min"))
    differed = differed or spread > 0
    called = called or get("rollout/tool_call_share") > 0
    ended = ended or (metrics["rollout/cut_share"] or 1) < 1
    accuracy = math.max(accuracy, get("rollout/accuracy"))
    low = math.min(low, metrics["reward/min"] or low)
    high = math.max(high, metrics["reward/max"] or high)
  end
  local replied, causes = low <= high, {}
  if replied and not ended then
    table.insert(
      causes,
      `every reply was cut at sampling.max_new_tokens = {run.max_new_tokens} or at the end of the context: raise the `
        .. "limit, or ask for shorter replies"
    )
  end
  if replied and run.tools and not called then
    table.insert(
      causes,
      "no reply called a tool: say in the prompt how calls are written, or fine-tune the model on examples of calls "
        .. "first (r1.sft)"
    )
  end
  if differed then
    if #causes == 0 then return nil end
    return `in the first {#run.steps} steps {table.concat(causes, "\n  ")}`
  end
  if not replied then
    table.insert(causes, "every trajectory failed")
  elseif high > low then
    table.insert(
      causes,
      "the trajectories of each group earned the same reward: raise trainer.group_size or sampling.temperature, or use "
        .. "tasks that the policy solves sometimes"
    )
  elseif accuracy > 0.9 then
    table.insert(causes, `every trajectory earned {high}, and the tasks count as solved: use harder tasks`)
  else
    table.insert(
      causes,
      `every trajectory earned {high}: use easier tasks, a reward with partial credit, or a model that solves some of `
        .. "the tasks"
    )
  end
  return `nothing could be learned in the first {#run.steps} steps:\n  {table.concat(causes, "\n  ")}`
end

return warnings
