--- Games in turns, as RAGEN trains them (arXiv:2504.20073): a reply has several actions,
--- `<think>…</think><answer>Left || Up</answer>`, and the environment shows the board after all of
--- them.
---
---   local game = turns {
---     system = "…", actions = { "Left", "Down", "Right", "Up" },
---     start = function(task) return board end,
---     act = function(board, action, task) return reward, done end, -- changes the board
---     show = function(board, task) return text end,
---   }
---   game.env, game.demonstration(task, player)
---
--- A board is plain data. RAGEN's rules: a reply without a valid action, or with one that does not
--- exist, costs `format_penalty` once; its valid actions are taken. Actions beyond
--- `max_actions_per_turn` are dropped without a cost. The game ends after `max_actions` actions or
--- `max_turns` replies.
---
--- `history` is the number of earlier turns in the prompt (all of them unless set). With 0 the
--- prompt is the system prompt and the board, so that equal boards are equal observations, which
--- `gigpo` compares; then `show_left = false` leaves out the number of actions left.

local check = require("@r1/options")

local OPTIONS = {
  "system", "actions", "start", "act", "show", "max_turns", "max_actions", "max_actions_per_turn", "format_penalty",
  "history", "show_left",
}

--- The message that shows the board.
local function board_message(options, state)
  local shown, left = options.show(state.board, state.task), options.max_actions - state.actions
  if options.show_left == false then return r1.user(shown) end
  return r1.user(`{shown}\n{left} {left == 1 and "action" or "actions"} left.`)
end

local function reset(options, task)
  local state = { task = task, board = options.start(task), actions = 0, invalid = 0, replies = 0, messages = {} }
  state.messages = { r1.system(options.system), board_message(options, state) }
  return state
end

--- Takes the actions of a reply, a list of names with false for one that could not be parsed:
--- the reward of the game, the format penalty, and whether the game is over.
local function take(options, state, names)
  local reward, done, invalid = 0, false, #names == 0
  for k = 1, math.min(#names, options.max_actions_per_turn) do
    local action = names[k] and options.index[string.lower(names[k])]
    if action == nil or action == false then
      invalid = true
    elseif not done and state.actions < options.max_actions then
      local gain, over = options.act(state.board, action, state.task)
      reward, done = reward + gain, over or false
      state.actions += 1
    end
  end
  state.replies += 1
  if invalid then state.invalid += 1 end
  return reward, invalid and options.format_penalty or 0, done or state.actions >= options.max_actions
end

local function step(options, state, action)
  r1.push(state.messages, r1.assistant(action))
  local names = {}
  for k, call in ipairs(action.tool_calls) do
    local name = call.arguments and call.arguments.action
    names[k] = type(name) == "string" and name or false
  end
  local reward, penalty, done = take(options, state, names)
  if not done then r1.push(state.messages, board_message(options, state)) end
  return { reward = reward + penalty, parts = { game = reward, format = penalty }, done = done }
end

--- A conversation for supervised fine-tuning: of a whole game, or with `history` one reply of it to
--- the prompt that the policy sees there. `player(board, task, left)` returns the names of the
--- actions of one reply.
local function demonstration(options, task, player)
  local state = reset(options, task)
  for turn = 1, options.max_turns do
    local left = math.min(options.max_actions_per_turn, options.max_actions - state.actions)
    local names = player(state.board, task, left)
    r1.push(state.messages, r1.assistant(`<answer>{table.concat(names, " || ")}</answer>`))
    local _, _, done = take(options, state, names)
    if done or turn == options.max_turns then break end
    r1.push(state.messages, board_message(options, state))
  end
  local messages = state.messages
  if options.history then
    local reply = 2 * math.random((#messages - 1) // 2) + 1
    local shown = { messages[1] }
    for place = math.max(2, reply - 1 - 2 * options.history), reply do r1.push(shown, messages[place]) end
    messages = shown
  end
  return { messages = messages, format = "answer" }
end

--- Makes the environment of a game (above). Options: `system`, `actions` (names), `start`, `act`,
--- `show`, `max_turns` (5), `max_actions` (10), `max_actions_per_turn` (5), `format_penalty`
--- (-0.1), `history` (nil: all), `show_left` (true).
return function(given)
  local options = table.clone(check("turns", given, OPTIONS))
  for _, name in ipairs { "start", "act", "show" } do
    local kind = type(options[name])
    if kind ~= "function" then error(`turns: \`{name}\` must be a function, got a {kind}`, 2) end
  end
  if type(options.actions) ~= "table" or #options.actions == 0 then
    error("turns: `actions` must be a list of names", 2)
  end
  options.system = options.system or ""
  options.max_turns = options.max_turns or 5
  options.max_actions = options.max_actions or 10
  options.max_actions_per_turn = options.max_actions_per_turn or 5
  options.format_penalty = options.format_penalty or -0.1
  options.index = {}
  for place, name in ipairs(options.actions) do options.index[string.lower(name)] = place end
  local env = r1.env {
    format = "answer",
    max_steps = options.max_turns,
    reset = function(task) return reset(options, task) end,
    step = function(state, action) return step(options, state, action) end,
    context = options.history and function(state)
      return r1.context(state.messages):keep_first(1):last_turns(options.history)
    end or nil,
  }
  return {
    env = env,
    demonstration = function(task, player) return demonstration(options, task, player) end,
  }
end
