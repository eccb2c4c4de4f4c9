--- Gymnasium environments in Python processes: `require("@r1/env_gym")` (docs/guide/env_gym.md).
---
--- A process holds the environments of many trajectories (lua/env_gym.py). Messages go through
--- r1.connection: they are recorded, so that a replay needs no Python, and the recipe declares the
--- interpreter in `needs`.

local check = require("@r1/options")
local SERVER = require("@r1/env_gym.py")

local NAME = "env_gym"
local OPTIONS = {
  "kwargs", "seed", "options", "observation", "action", "reward", "system", "python", "env", "directory", "processes",
  "timeout", "start_timeout", "restarts", "max_bytes", "max_steps", "context",
}
local FUNCTIONS = { "seed", "options", "observation", "action", "reward", "context" }
--- Default limit of an answer, in bytes.
local BYTES = 2 ^ 20

--- A text rendering without the codes of terminals: what they mark is put in brackets.
local function plain_text(text)
  local marked = string.gsub(text, "\27%[[47]%d?m(.-)\27%[0?m", "[%1]")
  return (string.gsub(marked, "\27%[[%d;]*m", ""))
end

--- The text rendering if there is one, otherwise the observation.
local function as_text(observation, _info, text)
  if text ~= nil then return plain_text(text) end
  return type(observation) == "string" and observation or r1.json.encode(observation)
end

--- A seed that all trajectories of a group share: the task's, or one drawn from the task's seed.
local function seed_of(task)
  if type(task) == "table" and type(task.seed) == "number" then return task.seed end
  return math.random(0, 2 ^ 31 - 1)
end

--- Makes an environment. See docs/guide/env_gym.md for the options.
return function(given)
  if type(given) == "string" then given = { given } end
  if type(given) ~= "table" then error(`{NAME}: takes a table, got a {type(given)}`, 2) end
  local id, named = given[1], table.clone(given)
  if type(id) ~= "string" or id == "" then
    error(`{NAME}: the first value is the id of an environment, such as env_gym \{ "FrozenLake-v1" }`, 2)
  end
  named[1] = nil
  local options = check(NAME, named, OPTIONS)
  for _, name in ipairs(FUNCTIONS) do
    if options[name] ~= nil and type(options[name]) ~= "function" then
      error(`{NAME}: \`{name}\` must be a function, got a {type(options[name])}`, 2)
    end
  end
  for _, name in ipairs { "kwargs", "env" } do
    if options[name] ~= nil and type(options[name]) ~= "table" then
      error(`{NAME}: \`{name}\` must be a table, got a {type(options[name])}`, 2)
    end
  end
  local kwargs = options.kwargs or {}
  if kwargs.render_mode ~= nil and kwargs.render_mode ~= "ansi" then
    error(`{NAME}: render_mode "{tostring(kwargs.render_mode)}" shows the policy nothing; "ansi" gives a text`, 2)
  end
  local observe, seed = options.observation or as_text, options.seed or seed_of
  local max_bytes = options.max_bytes or BYTES
  local server = r1.connection {
    command = { options.python or "python3", "-u", "-c", SERVER },
    name = `gymnasium {id}`,
    env = options.env, directory = options.directory, processes = options.processes,
    timeout = options.timeout, start_timeout = options.start_timeout, restarts = options.restarts,
    max_bytes = max_bytes,
    open_message = { op = "open", env = id, kwargs = kwargs, max_bytes = max_bytes },
  }

  --- The text of an observation.
  local function shown(answer)
    local text = observe(answer.observation, answer.info, answer.text)
    if type(text) ~= "string" then error(`{NAME}: \`observation\` must return text, got a {type(text)}`, 0) end
    return r1.user(text)
  end

  local function reset(task, own)
    local message = { op = "reset", seed = seed(task) }
    if type(message.seed) ~= "number" or message.seed % 1 ~= 0 or message.seed < 0 then
      error(`{NAME}: the seed is {tostring(message.seed)}; it must be a whole number, 0 or more`, 0)
    end
    if options.options then message.options = options.options(task, own) end
    local answer, why = server:request(message)
    if answer == nil then error(`{NAME}: reset of {id}: {why}`, 0) end
    local messages = {}
    if options.system then messages[1] = r1.system(options.system) end
    messages[#messages + 1] = shown(answer)
    return { task = task, messages = messages }
  end

  local function step(state, action)
    r1.push(state.messages, r1.assistant(action))
    local message = { op = "step", text = action.text }
    local refused
    if options.action then
      message.text = nil
      local given, why = options.action(action, state)
      if given == nil then refused = why or "the action is not valid" end
      message.action = given
    end
    local answer, why
    if refused == nil then
      answer, why = server:request(message)
      if answer == nil then error(`{NAME}: step of {id}: {why}`, 0) end
      refused = answer.refused
    end
    if refused ~= nil then
      r1.push(state.messages, r1.user("Error: " .. refused))
      return { reward = 0 }
    end
    local reward = answer.reward
    if options.reward then reward = options.reward(answer, state) end
    if type(reward) ~= "number" then
      error(`{NAME}: step of {id}: the reward is {if reward == nil then "nil" else r1.json.encode(reward)}, not a number`, 0)
    end
    r1.push(state.messages, shown(answer))
    return { reward = reward, done = answer.terminated, truncated = answer.truncated }
  end

  local function close() server:close() end

  return r1.env { reset = reset, step = step, close = close, max_steps = options.max_steps, context = options.context }
end
