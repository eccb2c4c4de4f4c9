--- Rewards and tools in Python: `require("@r1/python")` (docs/guide/python.md).
---
--- The functions run in a Python process of the user outside the sandbox (lua/python_server.py and
--- lua/python_worker.py). Calls go through r1.connection: they are recorded, so that a replay needs
--- no Python, and the recipe declares the interpreter in `needs`. The files are modules of the
--- script: they are stored with the run, and an edited file is a new version of the script.

local check = require("@r1/options")
local source = require("@r1/python_source")
local SERVER = require("@r1/python_server.py")
local WORKER = require("@r1/python_worker.py")

local NAME = "python"
local OPTIONS = { "python", "env", "processes", "timeout", "start_timeout", "restarts", "max_bytes" }
local TIMEOUT, START_TIMEOUT, BYTES = 30, 60, 2 ^ 20
--- A call waits for its turn, which limits.wait bounds; the process bounds its time.
local TURN = 24 * 3600
--- Fields of r1.tool that are passed on.
local TOOL = { "name", "description", "parameters", "max_result_tokens", "rewards", "retries", "cache", "concurrency" }

--- An option that is a number above 0.
local function positive(options, name, default)
  local value = options[name]
  if value == nil then return default end
  if type(value) ~= "number" or not (value > 0) then error(`{NAME}: \`{name}\` is a number above 0`, 3) end
  return value
end

--- The names in a list of arguments, and the other options.
local function positional(given)
  if type(given) == "string" then given = { given } end
  local names, named = {}, {}
  for key, value in pairs(given or {}) do
    if type(key) ~= "number" then named[key] = value end
  end
  for place, name in ipairs(given or {}) do names[place] = name end
  return names, named
end

--- The messages before the first reply of the trajectory, and those from it on.
local function split(state, outcome)
  local messages = if type(state.messages) == "table" then state.messages else {}
  local left = outcome.steps
  for place = #messages, 1, -1 do
    if messages[place].role == "assistant" then
      left -= 1
      if left == 0 then
        return table.move(messages, 1, place - 1, 1, {}), table.move(messages, place, #messages, 1, {})
      end
    end
  end
  return messages, { r1.assistant(outcome.text) }
end

--- The text of messages.
local function text_of(messages)
  local texts = {}
  for _, message in ipairs(messages) do
    local content = message.content
    if type(content) == "table" then
      local parts = {}
      for _, part in ipairs(content) do parts[#parts + 1] = part.text end
      content = table.concat(parts)
    end
    texts[#texts + 1] = content
  end
  return table.concat(texts, "\n")
end

--- An option: the result of a function of the state and the outcome, or the value itself.
local function value_of(option, state, outcome)
  if type(option) == "function" then return option(state, outcome) end
  return option
end

--- Opens Python files. See docs/guide/python.md for the options.
return function(given)
  local files, named = positional(given)
  if #files == 0 then error(`{NAME}: the first values are Python files, such as python \{ "reward.py" }`, 2) end
  local options = check(NAME, named, OPTIONS)
  local texts, functions, paths = {}, {}, {}
  for place, path in ipairs(files) do
    if type(path) ~= "string" or not string.find(path, "%.py$") then
      error(`{NAME}: \`{tostring(path)}\` is not the path of a Python file, relative to the script`, 2)
    end
    local read, text = pcall(require, path)
    if not read then
      error(`{NAME}: {string.match(tostring(text), "require: ([^\n]*)") or text}; a path is relative to the script's directory`, 2)
    end
    local stem = string.match(path, "([^/]+)%.py$")
    if paths[stem] then error(`{NAME}: {paths[stem]} and {path} have the same name, and each is a module of Python`, 2) end
    paths[stem] = path
    texts[place] = { path = (string.gsub(path, "^%./", "")), text = text }
    for _, own in ipairs(source.functions(text)) do
      own.path = path
      functions[#functions + 1] = own
    end
  end
  local interpreter = options.python or "python3"
  local limit = positive(options, "timeout", TIMEOUT)
  local start_timeout = positive(options, "start_timeout", START_TIMEOUT)
  local max_bytes = positive(options, "max_bytes", BYTES)
  local server = r1.connection {
    command = { interpreter, "-u", "-c", SERVER },
    name = `python {table.concat(files, " ")}`,
    env = options.env, start_timeout = start_timeout, restarts = options.restarts,
    timeout = TURN, max_bytes = max_bytes + 4096,
    open_message = {
      op = "open", worker = WORKER, files = texts, processes = positive(options, "processes", 1),
      timeout = limit, start_timeout = start_timeout, max_bytes = max_bytes,
    },
  }

  --- Calls a function; the answer, or nil and the reason.
  local function request(message)
    message.op = "call"
    local answer, why = server:request(message)
    -- A call is no part of a session: its copies do not repeat it.
    server:close()
    if answer and answer.printed and answer.printed ~= "" then
      for _, line in ipairs(string.split((string.gsub(answer.printed, "\n+$", "")), "\n")) do
        print(`{message["function"]}: {line}`)
      end
    end
    return answer, why
  end

  local function called(message)
    local answer, why = request(message)
    if not answer then error(`{message["function"]}: {why}`, 0) end
    return answer
  end

  --- The function with this name if it is at the top level of a file.
  local function defined(name)
    for _, own in ipairs(functions) do
      if own.name == name then return own end
    end
    return nil
  end

  --- Refuses a name that does not occur in the files. A function may be imported there.
  local function known(of, name)
    if type(name) ~= "string" then error(`{of}: a function is given by its name, got a {type(name)}`, 3) end
    local first = string.match(name, "^[^%.]*")
    for _, file in ipairs(texts) do
      if string.find(file.text, `%f[%w_]{first}%f[^%w_]`) then return name end
    end
    local names = {}
    for _, own in ipairs(functions) do names[#names + 1] = own.name end
    local has = if #names == 0 then "no functions" else table.concat(names, ", ")
    error(`{of}: {table.concat(files, " and ")} has no function \`{name}\`; there are {has}`, 3)
  end

  --- Whether a parameter of this name may occur in the files.
  local function mentions(name)
    for _, file in ipairs(texts) do
      if string.find(file.text, name, 1, true) then return true end
    end
    return false
  end
  local wants_ids = mentions("completion_ids")

  local python = {}

  --- The result of a function with these arguments.
  function python.call(name, args, kwargs)
    return called({ ["function"] = known("call", name), args = args, kwargs = kwargs }).value
  end

  --- A reward function from verl's compute_score.
  function python.compute_score(given)
    local names, rest = positional(given)
    local own = check("compute_score", rest, { "kwargs", "solution", "ground_truth", "data_source", "extra_info" })
    local name = known("compute_score", names[1] or "compute_score")
    local whole = own.solution == "all"
    if own.solution ~= nil and not whole and own.solution ~= "last" and type(own.solution) ~= "function" then
      error("compute_score: `solution` is \"last\", \"all\" or a function", 2)
    end
    return function(state, outcome)
      local task = state.task or {}
      local model = if type(task.reward_model) == "table" then task.reward_model else {}
      local solution = outcome.text
      if whole then
        local _, replies = split(state, outcome)
        solution = text_of(replies)
      elseif type(own.solution) == "function" then
        solution = own.solution(state, outcome)
      end
      local truth = value_of(own.ground_truth, state, outcome)
      if truth == nil then truth = model.ground_truth end
      if truth == nil then truth = task.answer end
      -- None, as verl passes it.
      if truth == nil then truth = r1.json.null end
      local extra = value_of(own.extra_info, state, outcome) or task.extra_info
      extra = if type(extra) == "table" then table.clone(extra) else {}
      if extra.num_turns == nil then extra.num_turns = outcome.steps end
      local arguments = table.clone(own.kwargs or {})
      arguments.data_source = value_of(own.data_source, state, outcome) or task.data_source or ""
      arguments.solution_str = solution
      arguments.ground_truth = truth
      arguments.extra_info = extra
      local answer = called({ ["function"] = name, style = "verl", kwargs = arguments })
      local parts = { total = answer.score, score = answer.score }
      for field, value in pairs(answer.fields) do
        if parts[field] == nil then parts[field] = { value = value, weight = 0 } end
      end
      return parts
    end
  end

  --- A reward function from functions of TRL's `reward_funcs`.
  function python.reward_funcs(given)
    local names, rest = positional(given)
    local own = check("reward_funcs", rest, { "weights", "kwargs", "conversational" })
    if #names == 0 then error("reward_funcs: the first values are names of functions", 2) end
    local weights = {}
    for key in pairs(own.weights or {}) do
      if not names[key] and not table.find(names, key) then
        error(`reward_funcs: \`weights\` has an entry for \`{key}\`; the functions are {table.concat(names, ", ")}`, 2)
      end
    end
    for place, name in ipairs(names) do
      known("reward_funcs", name)
      local weight = 1
      if own.weights then weight = own.weights[place] or own.weights[name] end
      if type(weight) ~= "number" then error(`reward_funcs: \`weights\` has no number for \`{name}\``, 2) end
      weights[name] = weight
    end
    return function(state, outcome)
      local task = state.task or {}
      local prompt, replies = split(state, outcome)
      local conversational = own.conversational
      if conversational == nil then conversational = type(task.prompt) == "table" or type(task.messages) == "table" end
      local batch = { prompts = { prompt }, completions = { replies } }
      if not conversational then
        local text = if type(task.prompt) == "string" then task.prompt else text_of({ prompt[#prompt] })
        batch = { prompts = { text }, completions = { text_of(replies) } }
      end
      if wants_ids then batch.completion_ids = { outcome.token_ids } end
      local parts, total = {}, 0
      for _, name in ipairs(names) do
        local message = { ["function"] = name, style = "trl", batch = batch, row = task, kwargs = own.kwargs }
        local answer = called(message)
        local reward = answer.rewards[1]
        if reward ~= r1.json.null then
          parts[name] = { value = reward, weight = weights[name] }
          total += reward * weights[name]
        end
        for field, value in pairs(answer.fields) do
          if parts[field] == nil then parts[field] = { value = value, weight = 0 } end
        end
      end
      if next(parts) == nil then
        print(`no function of reward_funcs is applicable: {table.concat(names, ", ")}; the reward is 0`)
      end
      parts.total = total
      return parts
    end
  end

  --- A tool from a function. `own` has fields of r1.tool, which replace those that are read from
  --- the function. Errors are at the line that calls the function which calls this one.
  local function make_tool(name, own)
    local found = defined(name)
    local schema = own.parameters
    if not schema then
      if not found then
        error(`tool: {table.concat(files, " and ")} does not define \`{name}\` at the top level; write its \`parameters\``, 3)
      end
      schema = { type = "object", properties = {}, required = {} }
      for _, parameter in ipairs(found.parameters) do
        local at = `{found.path}:{found.line}: parameter \`{parameter.name}\` of \`{name}\``
        if parameter.rest then error(`tool: {at} takes any number of values: a tool's parameters have names`, 3) end
        if not parameter.hint then
          error(`tool: {at} has no type hint, from which its schema is read: write \`{parameter.name}: str\``, 3)
        end
        local of, unknown = source.schema_of(parameter.hint)
        if not of then
          error(`tool: {at} has the type \`{unknown}\`, which has no JSON schema: give the tool's \`parameters\``, 3)
        end
        of.description = found.about[parameter.name] or of.description
        schema.properties[parameter.name] = of
        if not parameter.optional then table.insert(schema.required, parameter.name) end
      end
    end
    local tool = table.clone(own)
    tool.name, tool.parameters = own.name or name, schema
    tool.description = own.description or (found and found.description) or ""
    if tool.description == "" then
      error(`tool: \`{name}\` has no docstring, which the policy reads: write one, or \`description\``, 3)
    end
    tool.run = function(arguments)
      local answer, why = request({ ["function"] = name, style = "tool", kwargs = arguments })
      -- A time limit, or the end of the process.
      if not answer then return nil, "Error: " .. string.match(why or "", "^[^\n]*"), nil, true end
      if answer.failed then return nil, "Error: " .. answer.failed end
      return answer.text
    end
    return r1.tool(tool)
  end

  --- A tool from a function.
  function python.tool(name, given)
    local own = check("tool", given, TOOL)
    return make_tool(known("tool", name), own)
  end

  --- Tools from functions: those with these names, or all whose names do not begin with `_`.
  function python.tools(given)
    local names, rest = positional(given)
    local own = check("tools", rest, { "max_result_tokens", "rewards", "retries", "cache", "concurrency" })
    if #names == 0 then
      for _, found in ipairs(functions) do
        if string.sub(found.name, 1, 1) ~= "_" then names[#names + 1] = found.name end
      end
    end
    if #names == 0 then error(`tools: {table.concat(files, " and ")} has no functions`, 2) end
    local tools = {}
    for place, name in ipairs(names) do tools[place] = make_tool(known("tools", name), own) end
    return tools
  end

  local function missing(_, name)
    error(`{NAME}: there is no \`{tostring(name)}\`; there are call, compute_score, reward_funcs, tool, tools`, 2)
  end
  return table.freeze(setmetatable(python, { __index = missing }))
end
