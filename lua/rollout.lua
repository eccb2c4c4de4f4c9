-- Scripts and their trajectories for programs: r1.script and r1.rollout.

local host, model_of = ... -- calls; the handle of a model, or nil for other values

local Script = {}
local Attempt = {}
Script.__index = Script
Attempt.__index = Attempt

local function check(value, kind, name, level)
  if value ~= nil and type(value) ~= kind then
    error(name .. " must be a " .. kind .. ", got " .. (value == nil and "nil" or "a " .. type(value)), (level or 2) + 1)
  end
  return value
end

-- Refuses unknown fields.
local function known(options, names, of)
  for name in pairs(options) do
    local found = false
    for _, own in ipairs(names) do found = found or own == name end
    if not found then
      error(of .. ": unknown field `" .. tostring(name) .. "`; it takes " .. table.concat(names, ", "), 3)
    end
  end
end

--- Opens a script: `r1.script("scripts/retool.lua", { settings = { ["env.max_steps"] = 2 }, model =
--- … })`.
local function open(path, options)
  check(path, "string", "r1.script: the path")
  if path == nil then error("r1.script: takes the path of a script", 2) end
  options = check(options, "table", "r1.script: options") or {}
  known(options, { "settings", "model" }, "r1.script")
  check(options.settings, "table", "r1.script: `settings`")
  local model = model_of(options.model)
  if options.model ~= nil and model == nil then error("r1.script: `model` must be a result of r1.model", 2) end
  local handle, about = host.open(path, options.settings, model)
  local self = { handle = handle, path = about.path, tools = about.tools, format = about.format }
  self.with_model = model ~= nil
  return setmetatable(self, Script)
end

--- Number of rows of a split ("train" or "eval").
function Script:rows(split)
  return host.rows(self.handle, split)
end

--- One row, counted from 0.
function Script:row(row, split)
  return host.row(self.handle, row or 0, split)
end

--- Begins a trajectory at a row (0, 1, …) or at a given task. `generate` has the texts that
--- r1.generate returns, one for each call; the last one also for later calls.
function Script:reset(which)
  which = check(which, "table", "reset: its argument") or {}
  known(which, { "row", "split", "task", "seed", "generate" }, "reset")
  local texts = which.generate
  if type(texts) == "string" then texts = { texts } end
  check(texts, "table", "reset: `generate`")
  if texts and #texts == 0 then error("reset: `generate` must be a text, or a list of texts", 2) end
  for _, text in ipairs(texts or {}) do check(text, "string", "reset: each text of `generate`") end
  local task = { row = which.row or 0, split = which.split, task = which.task, seed = which.seed }
  return setmetatable({ handle = host.reset(self.handle, task, texts), with_model = self.with_model }, Attempt)
end

--- The current observation: messages, text, or { token_ids = … }; nil if the context is full and
--- the trajectory has ended.
function Attempt:observe()
  local shown = host.observe(self.handle)
  if shown == nil then return nil end
  return shown.messages or shown.text or shown
end

--- Replies: a text, or { text =, tool_calls = { { name =, arguments = } } }. Returns { reward,
--- done, status, text, tools }.
function Attempt:step(reply)
  if type(reply) == "string" then reply = { text = reply } end
  check(reply, "table", "step: the reply")
  if reply == nil then error("step: takes a reply, text or a table", 2) end
  known(reply, { "text", "tool_calls", "finish_reason" }, "step")
  local calls = reply.tool_calls
  if calls ~= nil and #calls == 0 then calls = nil end
  return host.step(self.handle, { text = reply.text, calls = calls, finish_reason = reply.finish_reason })
end

--- Replies with one tool call.
function Attempt:call(name, arguments)
  return self:step { tool_calls = { { name = name, arguments = arguments or {} } } }
end

--- Samples a reply of a model; the script must have been opened with it. Returns the same as
--- `step`.
function Attempt:sample(model, sampling)
  if model_of(model) == nil then error("sample: takes a result of r1.model", 2) end
  if not self.with_model then error("sample: open the script with the model: r1.script(path, { model = model })", 2) end
  local wanted = host.request(self.handle)
  local own = wanted.sampling
  own.stop_ids, own.seed = wanted.stop_ids, wanted.seed
  for name, value in pairs(sampling or {}) do own[name] = value end
  local reply = model:generate(wanted.prompt_ids, own)
  local sampled = { token_ids = reply.token_ids, logprobs = reply.logprobs, finish_reason = reply.finish_reason }
  return host.step(self.handle, sampled)
end

--- A copy of the environment's state as plain data.
function Attempt:state()
  return host.state(self.handle)
end

--- The total reward if the trajectory ended here, and its components.
function Attempt:reward()
  return host.reward(self.handle)
end

--- An independent copy.
function Attempt:fork()
  return setmetatable({ handle = host.fork(self.handle), with_model = self.with_model }, Attempt)
end

--- The result so far: { status, reward, steps, messages, … }. The trajectory can be continued.
function Attempt:finish()
  return host.finish(self.handle)
end

-- Runs a trajectory with a function `policy(observation, step, attempt)`, which returns the
-- arguments of `step`, until it ends or has `most` steps.
local function play(attempt, policy, most)
  local count = 0
  while count < most do
    local shown = attempt:observe()
    if shown == nil then return true end
    local reply = policy(shown, count + 1, attempt)
    if reply == nil then return false end
    count = count + 1
    if attempt:step(reply).done then return true end
  end
  return false
end

-- As `play`, but an error of the script ends the trajectory and not the program.
local function safely(attempt, policy, most)
  local fine, over = pcall(play, attempt, policy, most)
  if fine then return over end
  local ended = attempt:finish()
  -- An error of the policy function is an error of the program.
  if ended.error == nil then error(over, 0) end
  return true
end

--- Trajectories of a script with a function or a model: see docs/reference/lua.md.
local function rollout(options)
  check(options, "table", "r1.rollout: its argument")
  if options == nil then error("r1.rollout: takes a table", 2) end
  known(options, { "script", "policy", "rows", "tasks", "split", "samples", "seed", "sampling", "branch", "settings" }, "r1.rollout")
  local policy, samples = options.policy, options.samples or 1
  local model = model_of(policy)
  if model == nil and type(policy) ~= "function" then
    error("r1.rollout: `policy` must be a function or a result of r1.model", 2)
  end
  local branch = check(options.branch, "table", "r1.rollout: `branch`")
  if branch then known(branch, { "step", "count" }, "r1.rollout: `branch`") end
  local script = options.script
  if type(script) == "string" then
    script = open(script, { settings = options.settings, model = model and policy or nil })
  end
  if getmetatable(script) ~= Script then error("r1.rollout: `script` must be a path or a result of r1.script", 2) end
  local tasks = {}
  for _, row in ipairs(options.rows or {}) do
    tasks[#tasks + 1] = { row = row, split = options.split, seed = options.seed }
  end
  for _, task in ipairs(options.tasks or {}) do tasks[#tasks + 1] = { task = task, seed = options.seed } end
  if #tasks == 0 then tasks[1] = { row = 0, split = options.split, seed = options.seed } end

  if model then
    if not script.with_model then error("r1.rollout: open the script with the model: r1.script(path, { model = model })", 2) end
    return host.run(script.handle, model, {
      tasks = tasks, samples = samples, sampling = options.sampling,
      seed = options.seed or 0, branch = branch and { step = branch.step or 1, count = branch.count or 1 },
    })
  end
  if options.sampling ~= nil then error("r1.rollout: `sampling` is for a model", 2) end
  local all = {}
  for _, task in ipairs(tasks) do
    for _ = 1, samples do
      local attempt = script:reset(task)
      if branch then
        local over = safely(attempt, policy, branch.step or 1)
        for number = 1, over and 1 or branch.count or 1 do
          local own = over and attempt or attempt:fork()
          if not over then safely(own, policy, math.huge) end
          local ended = own:finish()
          if not over then ended.branch = number - 1 end
          all[#all + 1] = ended
        end
      else
        safely(attempt, policy, math.huge)
        all[#all + 1] = attempt:finish()
      end
    end
  end
  return all
end

return open, rollout, Script, Attempt
