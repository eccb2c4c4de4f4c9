--- Settings that have no effect, and contradictions that are warnings if the command line or a
--- default causes them, one row each. The argument is { settings, written, typed, critic, loss,
--- has_clip }. `written` has the settings that were written, `settings` also the defaults; `typed`
--- has the arguments of the command line by setting. `loss` is nil in supervised training, and for
--- a loss that is refused elsewhere. `has_clip`: the recipe's own algorithm has a clip range.

local function is_supervised(recipe) return recipe.settings.trainer.algorithm == "sft" end

local function is_written(recipe, setting)
  local value = recipe.written
  for name in string.gmatch(setting, "[^.]+") do
    value = if type(value) == "table" then value[name] else nil
  end
  return value ~= nil
end

-- Whether the KL penalty of trainer.kl is a term of the loss.
local function has_kl_in_loss(recipe)
  local kl = recipe.settings.trainer.kl
  return kl.coef > 0 and kl.place == "loss"
end

-- Contradictions, which are errors if the setting was written; `is_allowed`: warnings.
local CONTRADICTIONS = {
  {
    setting = "trainer.clip",
    is_allowed = true,
    broken = function(recipe)
      local clip, typed = recipe.settings.trainer.clip, recipe.typed
      local chosen = typed["trainer.algorithm"] or typed["trainer.loss"]
      local loss = recipe.loss
      if not clip or not chosen or typed["trainer.clip"] or not loss then return nil end
      local low, high = loss.options.clip_low, loss.options.clip_high
      if not low or not high or low == clip[1] and high == clip[2] then return nil end
      return `trainer.clip = \{ {clip[1]}, {clip[2]} } of the recipe replaces the clip range of {chosen}, which is `
        .. `\{ {low}, {high} }`
    end,
    hint = "trainer.clip=null keeps that of the algorithm",
  },
  {
    setting = "trainer.warmup",
    broken = function(recipe)
      local warmup, steps = recipe.settings.trainer.warmup, recipe.settings.trainer.steps
      if steps == 0 or warmup <= steps then return nil end
      local by_default = if is_written(recipe, "trainer.warmup") then "" else " by default"
      return `trainer.warmup{by_default} is {warmup} and trainer.steps {steps}: the learning rate never reaches trainer.lr`
    end,
    hint = "lower trainer.warmup or raise trainer.steps",
  },
  {
    setting = "trainer.critic.warmup",
    broken = function(recipe)
      if not recipe.critic then return nil end
      local warmup, steps = recipe.settings.trainer.critic.warmup, recipe.settings.trainer.steps
      if steps == 0 or warmup < steps then return nil end
      return `trainer.critic.warmup is {warmup} and trainer.steps {steps}: the policy is never trained`
    end,
    hint = "lower trainer.critic.warmup or raise trainer.steps",
  },
  {
    setting = "trainer.filter.refills",
    broken = function(recipe)
      local filter = recipe.settings.trainer.filter
      if not filter or not filter.uniform or filter.refills > 0 then return nil end
      return "trainer.filter.uniform replaces groups without variance, and trainer.filter.refills is 0: all stay"
    end,
    hint = "allow at least one, or set trainer.filter.uniform = false",
  },
  {
    setting = "trainer.branch.roots",
    is_allowed = true,
    broken = function(recipe)
      local branch = recipe.settings.trainer.branch
      if not branch or branch.roots == 0 or branch.roots ~= recipe.settings.trainer.group_size then return nil end
      return `trainer.branch.roots is {branch.roots} and so is trainer.group_size: nothing is left to branch off`
    end,
    hint = "give fewer roots than the group has members, or 0",
  },
}

-- Settings that have no effect: `why` returns the reason.
local NO_EFFECT = {
  {
    settings = { "policy.init" },
    why = function(recipe)
      if is_supervised(recipe) or recipe.settings.cold_start then return nil end
      return "reinforcement learning starts from policy.model"
    end,
    hint = "initialise it in a cold_start with r1.sft (docs/guide/sft.md), or set policy.model",
  },
  {
    settings = {
      "data.curriculum.low",
      "data.curriculum.high",
      "data.curriculum.outside",
      "data.curriculum.min_attempts",
      "data.curriculum.memory",
    },
    why = function(recipe) return is_supervised(recipe) and "supervised training has no success rates" end,
    hint = "leave it out; row_order sorts the rows (docs/guide/data.md)",
  },
  {
    settings = { "data.curriculum.outside" },
    why = function(recipe)
      local curriculum = recipe.settings.data.curriculum
      if is_supervised(recipe) or curriculum.low > 0 or curriculum.high < 1 then return nil end
      return "no band is set: every success rate is inside"
    end,
    hint = "set data.curriculum.low or data.curriculum.high",
  },
  {
    settings = { "trainer.clip" },
    why = function(recipe)
      local loss = recipe.loss
      if not recipe.settings.trainer.clip or not loss or loss.has_clip or recipe.has_clip then return nil end
      if recipe.settings.trainer.loss.name == "the recipe's function" then return "the recipe's function `loss` has no clip" end
      return `the loss \`{loss.name}\` has no clip`
    end,
    hint = "leave it out; on the command line: trainer.clip=null",
  },
  {
    settings = { "trainer.kl.kind", "trainer.kl.straight_through", "trainer.kl.place" },
    why = function(recipe)
      -- A written coefficient of 0 is a switch.
      local loss = recipe.loss
      if not loss or loss.terms.kl_coef == 0 then return nil end
      if recipe.settings.trainer.kl.coef ~= 0 or is_written(recipe, "trainer.kl.coef") then return nil end
      return `the KL of the loss \`{loss.name}\` has its own options: loss = \{ name = "{loss.name}", kl = "k1" }`
    end,
    hint = "set it as an option of the loss",
  },
  {
    settings = { "trainer.loss.kl", "trainer.loss.kl_straight_through" },
    why = function(recipe)
      return not is_supervised(recipe) and has_kl_in_loss(recipe) and "the KL is that of trainer.kl"
    end,
    hint = "leave it out",
  },
  {
    settings = { "trainer.loss.kl", "trainer.loss.kl_straight_through", "trainer.loss.kl_times_ratio" },
    why = function(recipe)
      local loss = recipe.loss
      if not loss or has_kl_in_loss(recipe) or loss.terms.kl_coef ~= 0 then return nil end
      return not is_written(recipe, "trainer.loss.kl_coef") and "the loss has no KL: its kl_coef is 0"
    end,
    hint = "leave it out",
  },
  {
    settings = { "trainer.loss.horizon" },
    why = function(recipe)
      if not recipe.loss or recipe.loss.terms.loss_agg == "seq-mean-token-sum-norm" then return nil end
      return 'only loss_agg = "seq-mean-token-sum-norm" divides by it'
    end,
    hint = "leave it out",
  },
  {
    settings = { "trainer.loss.seq" },
    why = function(recipe)
      if not recipe.loss or recipe.loss.terms.loss_agg ~= "token-mean" then return nil end
      return 'loss_agg = "token-mean" has no sequences'
    end,
    hint = "leave it out",
  },
  {
    settings = { "trainer.loss.ratio_over" },
    why = function(recipe)
      if not recipe.loss or recipe.loss.compares_sequences then return nil end
      return "the ratio of this loss is that of a token"
    end,
    hint = "leave it out",
  },
}

-- The settings that are contradicted or have no effect, each once.
local function unused(recipe)
  local listed = {}
  local function is_listed(setting)
    for _, one in ipairs(listed) do
      if one.setting == setting then return true end
    end
    return false
  end
  for _, rule in ipairs(CONTRADICTIONS) do
    local message = rule.broken(recipe)
    if message then
      local is_error = not rule.is_allowed and is_written(recipe, rule.setting)
      table.insert(listed, { setting = rule.setting, message = message, hint = rule.hint, is_error = is_error })
    end
  end
  for _, rule in ipairs(NO_EFFECT) do
    for _, setting in ipairs(rule.settings) do
      local why = is_written(recipe, setting) and not is_listed(setting) and rule.why(recipe)
      if why then
        local message = `{setting} is set and has no effect: {why}`
        table.insert(listed, { setting = setting, message = message, hint = rule.hint, is_error = true })
      end
    end
  end
  return listed
end

return { unused = unused }
