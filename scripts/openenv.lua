--- A game behind an OpenEnv server: Wordle of TextArena (OpenEnv's textarena_env), by default the
--- same game with two digits.
---
---   r1 run scripts/openenv.lua
---   r1 run scripts/openenv.lua policy.model=Qwen/Qwen3-1.7B cold_start=false \
---     params.url=http://127.0.0.1:8000 sampling.max_new_tokens=512

local digits = require("./lib/digits")
local env_http = require("@r1/env_http")

local params = r1.params {
  url = "", -- server of OpenEnv
  turns = digits.TURNS, -- most guesses (6 in Wordle)
}
local SYSTEM = "Guess the secret. Write each guess in brackets."

--- The text of an observation: the newest feedback, or before it the prompt.
local function shown(observation)
  local messages = observation.messages or {}
  for place = #messages, 1, -1 do
    local feedback = string.match(messages[place].content, ".*Feedback:%s*(.*)")
    if feedback then return feedback end
  end
  return #messages > 0 and messages[#messages].content or observation.prompt
end

--- Counts the repeated guesses, and the best share of letters in the right place.
local function watch(state, text, answer)
  local guess = string.match(text, "%[([%w%s]+)%]")
  state.guesses = state.guesses or {}
  if guess and table.find(state.guesses, guess) then state.repeats = (state.repeats or 0) + 1 end
  r1.push(state.guesses, guess or "")
  local marks = string.match(shown(answer.observation), "\n%s*([GYX][GYX ]*)") or "X"
  local greens, count = select(2, string.gsub(marks, "G", "")), select(2, string.gsub(marks, "[GYX]", ""))
  state.greens = math.max(state.greens or 0, greens / count)
  state.won = answer.reward == 1
end

local env
if params.url ~= "" then
  env = env_http {
    url = params.url, protocol = "openenv", system = SYSTEM, max_steps = params.turns, observation = shown,
    action = function(reply, state)
      state.reply = reply.text
      return { message = reply.text }
    end,
    reward = function(answer, state)
      watch(state, state.reply, answer)
      return answer.reward
    end,
  }
else
  env = r1.env {
    max_steps = params.turns,
    reset = function(task)
      local game, first = digits.start(task)
      return { task = task, game = game, messages = { r1.system(SYSTEM), r1.user(shown(first)) } }
    end,
    step = function(state, reply)
      local answer = digits.step(state.game, reply.text)
      watch(state, reply.text, answer)
      r1.push(state.messages, r1.assistant(reply))
      r1.push(state.messages, r1.user(shown(answer.observation)))
      return { reward = answer.reward, done = answer.done }
    end,
  }
end

--- Besides the server's reward, shaping as in TRL's Wordle: right letters and repeated guesses.
local function reward(state, outcome)
  return {
    won = { value = state.won and 1 or 0, weight = 0 },
    greens = { value = state.greens or 0, weight = 0.2 },
    repeats = { value = state.repeats or 0, weight = -0.1 },
    guesses = { value = outcome.steps, weight = 0 },
  }
end

--- A player who makes use of the feedback in three of five guesses.
local function demonstration()
  local game, first = digits.start(digits.row())
  local messages, guesses, marks = { r1.system(SYSTEM), r1.user(shown(first)) }, {}, {}
  for turn = 1, digits.TURNS do
    local guess = digits.guess(guesses, marks, 0.6)
    local answer = digits.step(game, `[{guess}]`)
    r1.push(messages, r1.assistant(`[{guess}]`))
    if answer.done then break end
    guesses[turn], marks[turn] = guess, digits.feedback(game.secret, guess)
    r1.push(messages, r1.user(shown(answer.observation)))
  end
  return { messages = messages }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 50000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 1000, batch_size = 24, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = digits.row },
    eval = r1.data.generate { count = 128, seed = 2, row = digits.row },
  },
  sampling = { max_new_tokens = 8 },
  trainer = r1.grpo { steps = 80, group_size = 8, groups_per_step = 8, lr = 3e-4 },
  eval = { temperature = 1, accuracy = "won" },
  needs = params.url ~= "" and { params.url } or nil,
}
