--- Environments behind an HTTP server: `require("@r1/env_http")` (docs/env_http.md).
---
--- Protocols: `plain` (POST /reset, POST /step) and `agentgym`, the servers of AgentGym (Xi et al.,
--- arXiv:2406.04151). Requests go through r1.http: they are recorded, so that a replay needs no
--- server, and the recipe declares the host in `needs`.

local check = require("@r1/options")

local NAME = "env_http"
local OPTIONS = {
  "url", "protocol", "reset", "action", "observation", "reward", "system", "timeout", "retries", "headers", "id",
  "max_steps", "context",
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

local function server_of(options, state)
  return {
    url = options.url, timeout = options.timeout or 60, retries = options.retries or 2, headers = options.headers,
    id = state and state.id or options.id, session = state and state.session,
  }
end

--- Makes an environment. See docs/env_http.md for the options.
return function(given)
  local options = check(NAME, given, OPTIONS)
  if not is_text(options.url) then error(`{NAME}: \`url\` is required: the address of the server`, 2) end
  options.url = string.gsub(options.url, "/+$", "")
  local protocol = protocols[options.protocol or "plain"]
  if not protocol then
    error(`{NAME}: \`protocol\` must be plain or agentgym, got {as_text(options.protocol)}`, 2)
  end
  for _, name in ipairs { "reset", "action", "observation", "reward", "context" } do
    if options[name] ~= nil and type(options[name]) ~= "function" then
      error(`{NAME}: \`{name}\` must be a function, got a {type(options[name])}`, 2)
    end
  end
  local observe = options.observation or as_text

  local function reset(task, kwargs)
    local server = server_of(options)
    server.id = server.id or protocol.id
    local body = options.reset and options.reset(task, kwargs) or {}
    if type(body) ~= "table" then error(`{NAME}: \`reset\` must return the fields of the request, got a {type(body)}`, 0) end
    local fine, session, first = pcall(protocol.reset, server, table.clone(body))
    if not fine then
      -- Without a state, `close` is not called.
      if server.session ~= nil then ask(server, "POST", "/close", { [server.id] = server.session }) end
      error(session, 0)
    end
    local messages = {}
    if options.system then messages[1] = r1.system(options.system) end
    messages[#messages + 1] = r1.user(observe(first.observation))
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
    local body = { action = sent, [state.id] = state.session }
    -- A step is not repeated: the server may have taken it.
    local answer, problem, refused = ask(server, "POST", "/step", body)
    if refused then
      r1.push(state.messages, r1.user("Error: " .. problem))
      return { reward = 0 }
    end
    if problem ~= nil then error(`{NAME}: {problem}`, 0) end
    local found = result(server, answer, "/step")
    local reward = answer.reward
    if options.reward then reward = options.reward(answer, state) end
    if type(reward) == "boolean" then reward = reward and 1 or 0 end
    if reward ~= nil and reward ~= r1.json.null and type(reward) ~= "number" then
      error(`{NAME}: /step: the reward is {as_text(reward)}, not a number`, 0)
    end
    r1.push(state.messages, r1.user(observe(found.observation)))
    return { reward = type(reward) == "number" and reward or 0, done = found.done, truncated = found.truncated }
  end

  local function close(state)
    -- A server without /close, or one that has stopped, is no failure.
    ask(server_of(options, state), "POST", "/close", { [state.id] = state.session })
  end

  return r1.env { reset = reset, step = step, close = close, max_steps = options.max_steps, context = options.context }
end
