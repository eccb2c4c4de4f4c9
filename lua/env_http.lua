--- Environments behind a server: `require("@r1/env_http")` (docs/guide/env_http.md).
---
--- Protocols: `plain` (POST /reset, POST /step), `agentgym`, the servers of AgentGym (Xi et al.,
--- arXiv:2406.04151), and `openenv`, the servers of OpenEnv (the package openenv-core), over
--- WebSocket. Requests go through r1.http and r1.connection: they are recorded, so that a replay
--- needs no server, and the recipe declares the host in `needs`.

local check = require("@r1/options")

local NAME = "env_http"
local OPTIONS = {
  "url", "protocol", "reset", "action", "observation", "reward", "system", "timeout", "retries", "headers", "id",
  "max_steps", "context",
  "server_state",
}
--- Characters of a server's text in an error message.
local SHOWN = 200

local function is_text(value) return type(value) == "string" end

local function as_text(value)
  if value == nil or value == r1.json.null then return "" end
  return is_text(value) and value or r1.json.encode(value)
end

--- One request. Gives the decoded body, or nil, the reason, and whether the server refused the
--- request itself (status 4xx). Without an answer the call is repeated `retries` times.
local function ask(server, method, path, body, query, retries)
  local function once()
    local answer, why = r1.http.request {
      url = server.url .. path, method = method, json = body, query = query,
      timeout = server.timeout, headers = server.headers,
    }
    if not answer then return nil, why, true end
    if answer.status >= 500 then return nil, `status {answer.status}: {r1.clip(answer.body, SHOWN)}`, true end
    if answer.status >= 400 then return nil, `status {answer.status}: {r1.clip(answer.body, SHOWN)}`, false, true end
    local value, bad = r1.json.decode(answer.body)
    if bad ~= nil then return nil, `the answer is not JSON: {r1.clip(answer.body, SHOWN)}`, false end
    if type(value) == "table" and is_text(value.error) then
      return nil, `the server reports an error: {r1.clip(value.error, SHOWN)}`, false, true
    end
    return value
  end
  local value, why, again, refused
  for attempt = 0, retries or 0 do
    if attempt > 0 then r1.sleep(0.5 * 2 ^ (attempt - 1)) end
    value, why, again, refused = once()
    if not again then break end
  end
  if why ~= nil then return nil, `{method} {server.url}{path}: {why}`, refused end
  return value
end

local function required(value, why)
  if value == nil then error(`{NAME}: {why}`, 0) end
  return value
end

--- The fields of a server's answer that end a step.
local function result(server, answer, where)
  if type(answer) ~= "table" then error(`{NAME}: {where}: the answer is not an object`, 0) end
  local session = answer[server.id]
  if session ~= nil and server.session ~= nil and session ~= server.session then
    error(`{NAME}: {where}: the answer is for session {as_text(session)}, not {as_text(server.session)}`, 0)
  end
  local observation = answer.observation
  if observation == nil then observation = answer.state end
  for _, name in ipairs { "done", "terminated", "truncated" } do
    if answer[name] ~= nil and type(answer[name]) ~= "boolean" then
      error(`{NAME}: {where}: \`{name}\` is {as_text(answer[name])}, not true or false`, 0)
    end
  end
  return {
    observation = observation,
    done = answer.done or answer.terminated or false,
    truncated = answer.truncated or false,
    answer = answer,
  }
end

local protocols = {}

protocols.plain = {
  id = "session_id",
  reset = function(server, body)
    local answer = required(ask(server, "POST", "/reset", body, nil, server.retries))
    local first = result(server, answer, "/reset")
    local session = answer[server.id]
    if type(session) ~= "number" and not is_text(session) then
      error(`{NAME}: /reset gave no \`{server.id}\`, which identifies the trajectory`, 0)
    end
    return session, first
  end,
}

protocols.agentgym = {
  reset = function(server, body)
    local made = required(ask(server, "POST", "/create", {}, nil, server.retries))
    local session = made
    if type(made) == "table" then session = made[server.id or "id"] else server.id = server.id or "env_idx" end
    server.id = server.id or "id"
    if type(session) ~= "number" and not is_text(session) then
      error(`{NAME}: /create gave no \`{server.id}\`: {r1.clip(as_text(made), SHOWN)}`, 0)
    end
    server.session = session
    body[server.id] = session
    local answer = required(ask(server, "POST", "/reset", body, nil, server.retries))
    local first = type(answer) == "table" and #answer == 0 and result(server, answer, "/reset") or { done = false }
    if first.observation == nil then
      local query = { [server.id] = session }
      first.observation = required(ask(server, "GET", "/observation", nil, query, server.retries))
    end
    return session, first
  end,
}

--- The reason in an error message of OpenEnv: its text, its code, and what is wrong with each
--- field.
local function openenv_error(data)
  if type(data) ~= "table" then return r1.clip(as_text(data), SHOWN) end
  local parts = { as_text(data.message) }
  if is_text(data.code) then parts[1] ..= ` ({data.code})` end
  if type(data.errors) == "table" then
    for _, problem in ipairs(data.errors) do
      if type(problem) == "table" then
        local at = type(problem.loc) == "table" and table.concat(problem.loc, ".") or as_text(problem.loc)
        table.insert(parts, `{at}: {as_text(problem.msg)}`)
      end
    end
  end
  return r1.clip(table.concat(parts, "; "), SHOWN)
end

--- One message to an OpenEnv server. Gives the data of the answer; or nil, the reason, and the
--- server's code for it, if the server has answered with an error.
local function openenv_ask(server, message, wanted)
  local answer, why = server.connection:request(message)
  if why ~= nil then return nil, `{message.type}: {why}` end
  if type(answer) ~= "table" then return nil, `{message.type}: the answer is not an object` end
  if answer.type == "error" then
    local data = answer.data
    local code = type(data) == "table" and is_text(data.code) and data.code or "UNKNOWN"
    return nil, `{message.type}: the server reports an error: {openenv_error(data)}`, code
  end
  if answer.type ~= wanted or type(answer.data) ~= "table" then
    return nil, `{message.type}: the answer is not of the type {wanted}: {r1.clip(as_text(answer), SHOWN)}`
  end
  return answer.data
end

--- Adds the server's state to an answer, with `server_state = true`.
local function with_state(server, answer)
  if answer.observation == nil then error(`{NAME}: the answer has no \`observation\``, 0) end
  if server.wants_state then answer.server_state = required(openenv_ask(server, { type = "state" }, "state")) end
  return answer
end

protocols.openenv = {
  reset = function(server, body)
    -- All trajectories of a group draw the same number here.
    if body.seed == nil then body.seed = math.random(0, 2 ^ 31 - 1) end
    local answer, why, code
    for attempt = 0, server.retries do
      if attempt > 0 then
        server.connection:close()
        r1.sleep(0.5 * 2 ^ (attempt - 1))
      end
      answer, why, code = openenv_ask(server, { type = "reset", data = body }, "observation")
      -- A refusal is permanent, unless the server has no free session.
      if answer ~= nil or (code ~= nil and code ~= "CAPACITY_REACHED") then break end
    end
    if code == "CAPACITY_REACHED" then
      why ..= "; allow it as many sessions as there are trajectories (max_concurrent_envs)"
    end
    local first = result(server, with_state(server, required(answer, why)), "reset")
    if first.done then error(`{NAME}: reset: the environment is done before its first step`, 0) end
    return nil, first
  end,
  step = function(server, action)
    local answer, why, code = openenv_ask(server, { type = "step", data = action }, "observation")
    -- An action that the environment's schema refuses is an error of the policy.
    if answer == nil then return nil, why, code == "VALIDATION_ERROR" end
    return with_state(server, answer)
  end,
  close = function(server) server.connection:close() end,
}

--- The steps of protocols over HTTP.
local function post_step(server, action)
  -- A step is not repeated: the server may have processed it.
  return ask(server, "POST", "/step", { action = action, [server.id] = server.session })
end

local function post_close(server)
  -- A server without /close, or one that has stopped, is not a failure.
  if server.session ~= nil then ask(server, "POST", "/close", { [server.id] = server.session }) end
end

local function server_of(options, state)
  return {
    url = options.url, timeout = options.timeout or 60, retries = options.retries or 2, headers = options.headers,
    id = state and state.id or options.id, session = state and state.session,
    connection = options.connection, wants_state = options.server_state,
  }
end

--- Makes an environment. See docs/guide/env_http.md for the options.
return function(given)
  local options = check(NAME, given, OPTIONS)
  if not is_text(options.url) then error(`{NAME}: \`url\` is required: the address of the server`, 2) end
  options = table.clone(options)
  options.url = string.gsub(options.url, "/+$", "")
  local protocol = protocols[options.protocol or "plain"]
  if not protocol then
    error(`{NAME}: \`protocol\` must be plain, agentgym or openenv, got {as_text(options.protocol)}`, 2)
  end
  local is_openenv = protocol == protocols.openenv
  if is_openenv then
    if options.action == nil then
      error(`{NAME}: \`action\` is required for openenv: a function that returns the fields of the environment's `
        .. "action, such as function(action) return { message = action.text } end; GET /schema of the server lists "
        .. "them", 2)
    end
    if options.id ~= nil then error(`{NAME}: \`id\` is not an option for openenv: its connection is the session`, 2) end
    local url = string.gsub(options.url, "^http", "ws")
    if not string.find(url, "^wss?://") then
      error(`{NAME}: \`url\` must begin with http://, https://, ws:// or wss://, got {options.url}`, 2)
    end
    if not string.find(url, "/ws$") then url ..= "/ws" end
    options.connection = r1.connection {
      url = url, headers = options.headers, timeout = options.timeout or 60, close_message = { type = "close" },
    }
  elseif options.server_state ~= nil then
    error(`{NAME}: \`server_state\` is an option for openenv only`, 2)
  end
  if options.server_state ~= nil and type(options.server_state) ~= "boolean" then
    error(`{NAME}: \`server_state\` must be true or false, got a {type(options.server_state)}`, 2)
  end
  for _, name in ipairs { "reset", "action", "observation", "reward", "context" } do
    if options[name] ~= nil and type(options[name]) ~= "function" then
      error(`{NAME}: \`{name}\` must be a function, got a {type(options[name])}`, 2)
    end
  end
  local observe = options.observation or as_text
  local take_step, close_session = protocol.step or post_step, protocol.close or post_close

  local function reset(task, kwargs)
    local server = server_of(options)
    server.id = server.id or protocol.id
    local body = options.reset and options.reset(task, kwargs) or {}
    if type(body) ~= "table" then error(`{NAME}: \`reset\` must return the fields of the request, got a {type(body)}`, 0) end
    local fine, session, first = pcall(protocol.reset, server, table.clone(body))
    if not fine then
      -- Without a state, `close` is not called.
      close_session(server)
      error(session, 0)
    end
    local messages = {}
    if options.system then messages[1] = r1.system(options.system) end
    messages[#messages + 1] = r1.user(observe(first.observation, session))
    return { task = task, messages = messages, session = session, id = server.id }
  end

  local function step(state, action)
    r1.push(state.messages, r1.assistant(action))
    local sent, why = action.text, nil
    if options.action then sent, why = options.action(action, state) end
    if sent == nil then
      r1.push(state.messages, r1.user("Error: " .. (why or "the action is not valid")))
      return { reward = 0 }
    end
    local server = server_of(options, state)
    if is_openenv and type(sent) ~= "table" then
      error(`{NAME}: \`action\` must return the fields of an action for openenv, a table, got a {type(sent)}`, 0)
    end
    local answer, problem, refused = take_step(server, sent)
    if refused then
      r1.push(state.messages, r1.user("Error: " .. problem))
      return { reward = 0 }
    end
    if problem ~= nil then error(`{NAME}: {problem}`, 0) end
    local where = is_openenv and "step" or "/step"
    local found = result(server, answer, where)
    local reward = answer.reward
    if options.reward then reward = options.reward(answer, state) end
    if type(reward) == "boolean" then reward = reward and 1 or 0 end
    if reward ~= nil and reward ~= r1.json.null and type(reward) ~= "number" then
      error(`{NAME}: {where}: the reward is {as_text(reward)}, not a number`, 0)
    end
    r1.push(state.messages, r1.user(observe(found.observation, state.session)))
    return { reward = type(reward) == "number" and reward or 0, done = found.done, truncated = found.truncated }
  end

  local function close(state) close_session(server_of(options, state)) end

  return r1.env { reset = reset, step = step, close = close, max_steps = options.max_steps, context = options.context }
end
