--- Wordle with two digits, which stands in for TextArena's Wordle behind an OpenEnv server
--- (scripts/openenv.lua): the same observations, with digits that r1-nano can copy.

local LENGTH, DIGITS, TURNS = 2, 3, 3
local PROMPT = `Guess the secret of {LENGTH} different digits from 1 to {DIGITS}, like [{string.sub("123456789", 1, LENGTH)}]. `
  .. "G: right place, Y: other place, X: not in it."

local digits = { TURNS = TURNS }

--- All secrets.
digits.all = {}
for a = 1, DIGITS do
  for b = 1, DIGITS do
    if a ~= b then digits.all[#digits.all + 1] = `{a}{b}` end
  end
end

--- A letter for each digit of a guess, separated by spaces.
function digits.feedback(secret, guess)
  local letters = {}
  for place = 1, LENGTH do
    local digit = string.sub(guess, place, place)
    letters[place] = string.sub(secret, place, place) == digit and "G" or string.find(secret, digit, 1, true) and "Y" or "X"
  end
  return table.concat(letters, " ")
end

--- The secrets that agree with the feedback to some guesses.
function digits.possible(guesses, feedbacks)
  local found = {}
  for _, secret in ipairs(digits.all) do
    local fits = true
    for place, guess in ipairs(guesses) do
      if digits.feedback(secret, guess) ~= feedbacks[place] then fits = false end
    end
    if fits then found[#found + 1] = secret end
  end
  return found
end

--- A guess that agrees with the feedback with this probability, and any secret otherwise.
function digits.guess(guesses, feedbacks, probability)
  local choices = math.random() < probability and digits.possible(guesses, feedbacks) or digits.all
  return choices[math.random(#choices)]
end

--- A row: the secret, and the winning guess, which `r1 check` replies.
function digits.row()
  local secret = digits.all[math.random(#digits.all)]
  return { secret = secret, answer = `[{secret}]` }
end

local function spaced(guess) return (string.gsub(guess, "(%d)", "%1 "):sub(1, -2)) end

--- A game, and its first observation.
function digits.start(task) return { secret = task.secret, turns = 0 }, { prompt = PROMPT, messages = {} } end

--- Changes the game by a message: the answer of the server.
function digits.step(game, message)
  game.turns += 1
  local guess = string.match(message, "%[(%d%d)%]")
  local text, won = "An invalid guess.", guess == game.secret
  if guess then text = `Feedback:\n{spaced(guess)}\n{digits.feedback(game.secret, guess)}` end
  local observation = { prompt = PROMPT, messages = { { sender_id = -1, content = text, category = "MESSAGE" } } }
  return { observation = observation, reward = won and 1 or 0, done = won or game.turns >= TURNS }
end

return digits
