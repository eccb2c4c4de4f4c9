-- Training loops for programs: r1.training.

local host = ... -- calls of a run

local Training = {}
Training.__index = Training

local function check(value, kind, name)
  if value ~= nil and type(value) ~= kind then
    error(name .. " must be a " .. kind .. ", got a " .. type(value), 3)
  end
  return value
end

-- Refuses unknown fields.
local function known(options, names, of)
  options = options or {}
  for name in pairs(options) do
    if not table.find(names, name) then
      error(of .. ": unknown field `" .. tostring(name) .. "`; it takes " .. table.concat(names, ", "), 3)
    end
  end
  return options
end

-- The ids of a list of trajectories or ids.
local function ids_of(list, name)
  if type(list) ~= "table" then error(name .. " takes a list of trajectories, got a " .. type(list), 3) end
  local ids = {}
  for place, one in ipairs(list) do
    local id = type(one) == "table" and one.id or one
    if type(id) ~= "string" then
      error(name .. ": entry " .. place .. " is neither a trajectory of t:rollout nor the id of one", 3)
    end
    ids[place] = id
  end
  return ids
end

-- Calls the host and updates the step and the number of steps of the run.
local function call(self, method, ...)
  local values_found, step, steps = method(self.handle, ...)
  self.step, self.steps = step, steps
  return values_found
end

--- Opens a run of a recipe: `r1.training("scripts/retool.lua", { settings = { ["trainer.lr"] = 1e-4
--- } })`, or `r1.training({ env = …, trainer = … })` with the recipe in the program.
local function training(recipe, options)
  if recipe == nil then error("r1.training: takes a recipe, or the path of one", 2) end
  local names = { "settings", "name", "runs", "resume", "reload", "profile" }
  options = known(check(options, "table", "r1.training: options"), names, "r1.training")
  check(options.settings, "table", "r1.training: `settings`")
  for _, name in ipairs { "name", "runs", "resume" } do
    check(options[name], "string", "r1.training: `" .. name .. "`")
  end
  for _, name in ipairs { "reload", "profile" } do
    check(options[name], "boolean", "r1.training: `" .. name .. "`")
  end
  local handle, about = host.open(recipe, options)
  local self = { handle = handle, step = about.step, steps = about.steps, rows = about.rows, run_dir = about.run_dir }
  self.settings, self.critic = about.settings, about.critic
  return setmetatable(self, Training)
end

--- Samples trajectories with the current weights: of the next tasks, or of given rows.
function Training:rollout(options)
  options = known(check(options, "table", "rollout: options"), { "groups", "samples", "rows", "ids" }, "rollout")
  local chosen = { groups = options.groups, samples = options.samples, rows = options.rows }
  return call(self, host.rollout, chosen, options.ids)
end

--- The advantages of trajectories: per trajectory one list per step, with one value per token.
function Training:advantages(trajectories, estimator)
  return call(self, host.advantages, ids_of(trajectories, "advantages"), estimator)
end

--- Updates the policy with trajectories; returns metrics.
function Training:update(trajectories, options)
  local names = {
    "advantages", "returns", "policy", "estimator", "loss", "options", "groups", "lr", "epochs", "mini_batches",
  }
  options = known(check(options, "table", "update: options"), names, "update")
  local chosen = {
    advantages = options.advantages, returns = options.returns, estimator = options.estimator,
    policy = check(options.policy, "boolean", "update: `policy`"), groups = options.groups, lr = options.lr,
    epochs = options.epochs, mini_batches = options.mini_batches,
  }
  local loss
  if type(options.loss) == "function" then
    loss = options.loss
  elseif options.options ~= nil then
    error("update: `options` are those of a loss that is a function", 2)
  else
    chosen.loss = options.loss
  end
  return call(self, host.update, ids_of(trajectories, "update"), chosen, loss, options.options)
end

--- A supervised step on conversations; returns metrics.
function Training:sft(examples, options)
  options = known(check(options, "table", "sft: options"), { "lr" }, "sft")
  if type(examples) ~= "table" or #examples == 0 then error("sft: takes a list of rows { messages = … }", 2) end
  return call(self, host.sft, examples, options.lr)
end

--- Log-probabilities of the sampled tokens, by step.
function Training:logprobs(trajectories, options)
  options = known(check(options, "table", "logprobs: options"), { "model" }, "logprobs")
  local model = options.model or "policy"
  if model ~= "policy" and model ~= "reference" then
    error("logprobs: `model` is \"policy\" or \"reference\", got " .. tostring(model), 2)
  end
  return call(self, host.logprobs, ids_of(trajectories, "logprobs"), model == "reference")
end

--- The critic's values of the states before the sampled tokens, by step; and of the next states.
function Training:values(trajectories)
  local values_found = call(self, host.values, ids_of(trajectories, "values"))
  return values_found.values, values_found.next
end

--- Copies the current policy to the reference policy.
function Training:renew_reference()
  call(self, host.renew_reference)
end

--- Evaluates on the held-out tasks; nil if there are none.
function Training:evaluate()
  return call(self, host.evaluate)
end

--- Adds metrics to the current step.
function Training:log(values)
  for name, value in pairs(check(values, "table", "log: its argument") or {}) do
    if type(name) ~= "string" or type(value) ~= "number" then
      error("log: takes numbers by name, got " .. tostring(name) .. " = " .. tostring(value), 2)
    end
  end
  call(self, host.log, values)
end

--- Ends the step and returns its metrics.
function Training:next_step(values)
  if values ~= nil then self:log(values) end
  return call(self, host.next_step)
end

--- Writes a checkpoint, and optionally the model to another directory; returns the checkpoint's
--- path.
function Training:save(out)
  return call(self, host.save, check(out, "string", "save: the directory"))
end

return training, Training
