--- Contradictions between settings of a recipe, by group, one row each: the setting that is
--- refused, the condition, and the fix. `broken` returns the message for settings that break the
--- rule, and nil for others. Conditions of a single setting (ranges, needs) are part of its
--- declaration.

local ONE_OF_TWO = "leave one of the two out"
local NOT_FOR_TRAINING = "leave it out; it is for `r1 infer` and `r1 lua`"
local OTHER_DISTRIBUTION = "sampling.repetition_penalty and sampling.logit_bias sample from another distribution than "
  .. "the policy's, which training can't score"

-- The name of a recipe's function among estimators and losses.
local OF_RECIPE = "the recipe's function"

-- A setting that is also given as an option of the loss. Options of the recipe's function are
-- options of its own.
local function twice(trainer, setting, option)
  if trainer.loss[option] ~= nil and trainer.loss.name ~= OF_RECIPE then
    return `{setting} and \`{option}\` of trainer.loss set the same value`
  end
  return nil
end

-- A count with thousands separators and its noun: `1 trajectory`, `1,024 trajectories`.
local function counted(count, singular, plural)
  local digits = string.format("%d", count):reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return `{digits} {if count == 1 then singular else plural}`
end

-- Contradictions within the settings of policy optimisation.
local TRAINER = {
  {
    setting = "trainer.clip",
    broken = function(trainer)
      if not trainer.clip then return nil end
      return twice(trainer, "trainer.clip", "clip_low") or twice(trainer, "trainer.clip", "clip_high")
    end,
    hint = ONE_OF_TWO,
  },
  {
    setting = "trainer.loss_agg",
    broken = function(trainer) return trainer.loss_agg and twice(trainer, "trainer.loss_agg", "loss_agg") end,
    hint = ONE_OF_TWO,
  },
  {
    setting = "trainer.entropy",
    broken = function(trainer)
      return if trainer.entropy == 0 then nil else twice(trainer, "trainer.entropy", "entropy_coef")
    end,
    hint = ONE_OF_TWO,
  },
  {
    setting = "trainer.kl.coef",
    broken = function(trainer)
      local in_loss = trainer.kl.coef > 0 and trainer.kl.place == "loss"
      return if in_loss then twice(trainer, "trainer.kl.coef", "kl_coef") else nil
    end,
    hint = ONE_OF_TWO,
  },
  {
    setting = "trainer.mini_batches",
    broken = function(trainer)
      local trajectories = trainer.group_size * trainer.groups_per_step
      if trainer.mini_batches <= trajectories then return nil end
      local count = counted(trajectories, "trajectory", "trajectories")
      return `trainer.mini_batches is {trainer.mini_batches} and a step has {count}`
    end,
    hint = "give fewer mini-batches",
  },
  {
    setting = "trainer.mini_batches",
    broken = function(trainer)
      if trainer.mini_batch_by ~= "step" or trainer.mini_batches <= 1 then return nil end
      return `trainer.mini_batches is {trainer.mini_batches} and trainer.mini_batch_by is "step"`
    end,
    hint = "by step there is one for each number of a step: leave trainer.mini_batches out",
  },
  {
    setting = "trainer.clip",
    broken = function(trainer)
      if not trainer.clip then return nil end
      local low, high = trainer.clip[1], trainer.clip[2]
      if low > 0 and low <= 1 and high > 0 and high < math.huge then return nil end
      return `trainer.clip is \{ {low}, {high} }`
    end,
    hint = "both are above 0, the first at most 1",
  },
  {
    setting = "trainer.critic.privileged",
    broken = function(trainer)
      if not trainer.critic.shared or trainer.critic.privileged == "" then return nil end
      return "trainer.critic.privileged is for the critic alone, and with trainer.critic.shared it reads what the "
        .. "policy reads"
    end,
    hint = "leave trainer.critic.shared out: the critic is then a model of its own",
  },
  {
    setting = "trainer.entropy",
    broken = function(trainer)
      local entropy = trainer.entropy
      if math.abs(entropy) < math.huge then return nil end
      return `trainer.entropy is {if entropy ~= entropy then "NaN" else entropy}`
    end,
    hint = "give a number",
  },
  {
    setting = "trainer.filter.uniform",
    broken = function(trainer)
      if not trainer.filter.uniform or trainer.group_size >= 2 then return nil end
      return "trainer.filter.uniform drops groups without variance, and groups of one have none"
    end,
    hint = "raise trainer.group_size or leave the filter out",
  },
  {
    setting = "trainer.branch.roots",
    broken = function(trainer)
      local roots, group = trainer.branch.roots, trainer.group_size
      return if roots > group then `trainer.branch.roots is {roots} and trainer.group_size {group}` else nil
    end,
    hint = "the roots are part of the group: give fewer than trainer.group_size",
  },
  {
    setting = "trainer.branch.rounds",
    broken = function(trainer)
      local roots, rounds = trainer.branch.roots, trainer.branch.rounds
      if roots == 0 then return nil end
      local branches = math.max(trainer.group_size - roots, 0) // roots
      if rounds <= math.max(branches, 1) then return nil end
      return `trainer.branch.rounds is {rounds}, and {branches} trajectories branch off each root`
    end,
    hint = "give at least 1, and a trajectory for each round",
  },
  {
    setting = "trainer.branch.at",
    broken = function(trainer)
      local steps = trainer.branch.at
      if type(steps) ~= "table" or trainer.branch.roots == 0 then return nil end
      if #steps > 0 and not table.find(steps, 0) then return nil end
      return `trainer.branch.at is [{table.concat(steps, ", ")}]`
    end,
    hint = "list numbers of steps: 1 is the state after the first; roots begin at 0",
  },
}

-- Sampling settings whose log-probabilities training can't compute.
local SAMPLING = {
  {
    setting = "sampling.repetition_penalty",
    broken = function(sampling) return if sampling.repetition_penalty ~= 1 then OTHER_DISTRIBUTION else nil end,
    hint = NOT_FOR_TRAINING,
  },
  {
    setting = "sampling.logit_bias",
    broken = function(sampling) return if next(sampling.logit_bias) then OTHER_DISTRIBUTION else nil end,
    hint = NOT_FOR_TRAINING,
  },
  {
    setting = "sampling.temperature",
    broken = function(sampling) return if sampling.temperature < 0 then "sampling.temperature is below 0" else nil end,
    hint = "train at temperature 1",
  },
  {
    setting = "sampling.temperature",
    broken = function(sampling)
      if sampling.temperature ~= 0 then return nil end
      return "sampling.temperature is 0: all samples of a task are the same, and there is no distribution to learn"
    end,
    hint = "train at temperature 1; eval.temperature may be 0",
  },
}

-- The facts of these rules are { trainer, critic, estimator = { name, level, needs }, loss, kl_coef
-- }. `estimator` is nil for the recipe's function `advantage`. A loss is { name, options, terms,
-- has_clip, compares_sequences, one_advantage_per_sequence }.

local function needs(facts, input) return facts.estimator and table.find(facts.estimator.needs, input) ~= nil end

-- Whether the loss needs one advantage for each trajectory.
local function is_by_trajectory(facts)
  return facts.estimator and facts.loss.one_advantage_per_sequence and facts.loss.terms.ratio_over == "trajectory"
end

-- Estimator, loss and critic that do not work together or make no sense.
local OBJECTIVE = {
  {
    setting = "trainer.estimator",
    broken = function(facts)
      if not facts.estimator or not facts.critic or needs(facts, "critic") then return nil end
      return `trainer.estimator is {facts.estimator.name}, which does not use the critic that r1.ppo trains`
    end,
    hint = 'use r1.grpo, or estimator = "gae"',
  },
  {
    setting = "trainer.estimator",
    broken = function(facts)
      if facts.critic or not needs(facts, "critic") then return nil end
      return `trainer.estimator is {facts.estimator.name}, which needs the values of a critic`
    end,
    hint = "use r1.ppo",
  },
  {
    setting = "trainer.estimator",
    broken = function(facts)
      local size = facts.trainer.group_size
      if size >= 2 or not needs(facts, "groups") then return nil end
      return `trainer.estimator is {facts.estimator.name}, which compares the trajectories of a group, and `
        .. `trainer.group_size is {size}`
    end,
    hint = "raise trainer.group_size, or choose an estimator without groups, such as reinforce_pp",
  },
  {
    setting = "trainer.mini_batch_by",
    broken = function(facts)
      if not facts.critic or facts.trainer.mini_batch_by ~= "step" then return nil end
      return 'trainer.mini_batch_by is "step", which is defined without a critic'
    end,
    hint = 'use r1.grpo, or trainer.mini_batch_by = "trajectory"',
  },
  {
    setting = "trainer.estimator",
    broken = function(facts)
      local shaping, kl = facts.trainer.shaping, facts.trainer.kl
      local is_shaped = shaping.overlong or shaping.prime or shaping.normalize or shaping.scale or shaping.running
      local is_penalised = kl.place == "reward" and kl.coef > 0
      if not needs(facts, "parts") or not (is_shaped or is_penalised) then return nil end
      return "trainer.estimator is gdpo, which reads the parts of the reward: trainer.shaping and a KL in the reward act "
        .. "on their sum, and do nothing"
    end,
    hint = "leave them out, or put the KL into the loss",
  },
  {
    setting = "trainer.loss",
    broken = function(facts)
      local estimator, loss = facts.estimator, facts.loss
      if not estimator or not loss.one_advantage_per_sequence or estimator.level ~= "token" then return nil end
      return `trainer.loss is {loss.name}, which has one ratio for a sequence, and trainer.estimator is `
        .. `{estimator.name}, which gives every token of it an advantage of its own`
    end,
    hint = "choose an estimator by step or trajectory, such as gae or grpo, or a loss by token, such as ppo",
  },
  {
    setting = "trainer.loss",
    broken = function(facts)
      local estimator = facts.estimator
      if not estimator or facts.loss.name ~= "pspo" or estimator.name == "gae" then return nil end
      return `trainer.loss is pspo, which is defined with the step-level gae, not with {estimator.name}`
    end,
    hint = 'trainer.loss = "gspo" is the same loss for other estimators',
  },
  {
    setting = "trainer.loss.ratio_over",
    broken = function(facts)
      if not is_by_trajectory(facts) or facts.trainer.branch.roots == 0 then return nil end
      return `{facts.loss.name} over trajectories needs one advantage for each, and with trainer.branch the steps that `
        .. "trajectories share have their own"
    end,
    hint = 'set ratio_over = "step"',
  },
  {
    setting = "trainer.loss.ratio_over",
    broken = function(facts)
      if not is_by_trajectory(facts) or facts.estimator.level ~= "step" then return nil end
      return `{facts.loss.name} over trajectories needs one advantage for each, and trainer.estimator is `
        .. `{facts.estimator.name}, which gives one per step`
    end,
    hint = 'set ratio_over = "step"',
  },
  {
    setting = "trainer.kl.target",
    broken = function(facts)
      if facts.trainer.kl.target <= 0 or facts.kl_coef ~= 0 then return nil end
      return "trainer.kl.target adapts the coefficient by factors, and trainer.kl.coef is 0"
    end,
    hint = "set trainer.kl.coef to the initial coefficient, such as 0.01",
  },
}

-- Settings that the recipe's own loss must read.
local CUSTOM_LOSS = {
  {
    setting = "trainer.importance",
    broken = function(loss)
      if not loss.is_total or not loss.weighs or loss.reads_weights then return nil end
      return "trainer.importance and trainer.rejection weigh tokens, and the recipe's `loss` gives one number without "
        .. "b.weights"
    end,
    hint = "multiply the loss of a token by b.weights, or return a loss for each token",
  },
}

local PRIVILEGED_ALONE = "`privileged` is for the critic alone, and with trainer.critic.shared it reads what the policy "
  .. "reads"

-- Contradictions between the trainer, the environments and the functions of a recipe: { trainer,
-- critic, max_steps, privileged, chosen, staleness, samplers, oversample, greedy, curriculum }.
-- `chosen`: the command line names the algorithm. `staleness` and `samplers`: `rollout.async` and
-- its `ranks`. `greedy`: advantages need a greedy baseline.
local RECIPE = {
  {
    setting = "trainer.zero_stage",
    broken = function(recipe)
      if recipe.trainer.zero_stage < 3 or recipe.staleness == 0 or recipe.samplers > 0 then return nil end
      return "with trainer.zero_stage = 3 a process does not have all weights during an update, and rollout.async "
        .. "samples then"
    end,
    hint = "use trainer.zero_stage = 2, or processes that only sample (rollout.async.ranks)",
  },
  {
    setting = "trainer.filter.uniform",
    broken = function(recipe)
      if recipe.staleness == 0 or not recipe.trainer.filter.uniform then return nil end
      return "trainer.filter.uniform replaces groups by the next tasks, and with rollout.async these belong to later steps"
    end,
    hint = "leave one of the two out: groups with equal rewards have no gradient of their own",
  },
  {
    setting = "rollout.async.staleness",
    broken = function(recipe)
      if recipe.staleness == 0 or not recipe.curriculum then return nil end
      return "data.curriculum selects tasks by the results of all steps before, and rollout.async begins earlier"
    end,
    hint = "leave one of the two out",
  },
  {
    setting = "rollout.oversample",
    broken = function(recipe)
      local more = recipe.oversample
      if recipe.staleness == 0 or more.groups + more.samples == 0 then return nil end
      return "rollout.async begins whole steps, and rollout.oversample selects the groups of a step while it runs"
    end,
    hint = "leave one of the two out",
  },
  {
    setting = "rollout.oversample.groups",
    broken = function(recipe)
      if recipe.oversample.groups == 0 or not recipe.curriculum then return nil end
      return "data.curriculum selects tasks by the results of all steps before, and rollout.oversample.groups leaves "
        .. "groups without a result"
    end,
    hint = "leave one of the two out, or use rollout.oversample.samples",
  },
  {
    setting = "rollout.oversample.samples",
    broken = function(recipe)
      if recipe.oversample.samples == 0 then return nil end
      if recipe.trainer.branch.roots > 0 then
        return "branches continue from other trajectories of a group, and rollout.oversample.samples drops some of them"
      end
      if not recipe.greedy then return nil end
      return "the advantages need a greedy trajectory of each group, and rollout.oversample.samples drops the last ones"
    end,
    hint = "use rollout.oversample.groups",
  },
  {
    setting = "trainer.branch.roots",
    broken = function(recipe)
      if recipe.trainer.branch.roots == 0 or recipe.max_steps > 1 then return nil end
      return "trainer.branch branches off intermediate states, and env.max_steps is 1: there are none"
    end,
    hint = "raise env.max_steps, or set trainer.branch.roots = 0",
  },
  {
    setting = "privileged",
    broken = function(recipe)
      if not recipe.privileged or recipe.critic or recipe.chosen then return nil end
      return "`privileged` is text for a critic, and this algorithm trains none"
    end,
    hint = "use r1.ppo or leave it out",
  },
  {
    setting = "privileged",
    broken = function(recipe)
      if not recipe.privileged or not recipe.critic then return nil end
      if recipe.trainer.critic.shared then return PRIVILEGED_ALONE end
      if recipe.trainer.critic.privileged == "" then return nil end
      return "`privileged` and trainer.critic.privileged both give the text that only the critic reads"
    end,
    hint = ONE_OF_TWO,
  },
}

-- The rules of a group that settings break, in the order of the group.
local function check(group)
  return function(facts)
    local broken = {}
    for _, rule in ipairs(group) do
      local message = rule.broken(facts)
      if message then table.insert(broken, { setting = rule.setting, message = message, hint = rule.hint }) end
    end
    return broken
  end
end

return {
  trainer = check(TRAINER),
  sampling = check(SAMPLING),
  objective = check(OBJECTIVE),
  custom_loss = check(CUSTOM_LOSS),
  recipe = check(RECIPE),
}
