--- Guess a number: higher, lower, right.
local function answer_to(guess, secret)
  if guess < secret then return "higher" end
  if guess > secret then return "lower" end
  return "right"
end

local add = r1.tool {
  name = "add",
  description = "Adds two whole numbers.",
  parameters = { a = "integer", b = "integer" },
  run = function(arguments) return tostring(arguments.a + arguments.b), 0.5 end,
}

local env = r1.env {
  tools = { add },
  max_steps = 3,
  reset = function(task)
    return { secret = task.secret or math.random(20), tries = 0, messages = { r1.user("Guess") } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls > 0 then
      for _, result in ipairs(r1.call_tools(action.tool_calls)) do r1.push(state.messages, r1.observation(result)) end
      return {}
    end
    state.tries = state.tries + 1
    local said = answer_to(tonumber(action.text), state.secret)
    r1.push(state.messages, r1.user(said))
    return { done = said == "right", reward = 0.1 }
  end,
}

return r1.recipe {
  env = env,
  reward = function(state, outcome) return { solved = outcome.terminated and 1 or 0, tries = { value = state.tries, weight = 0 } } end,
  data = { train = r1.data.generate { count = 3, row = function(index) return { secret = index * 10 } end } },
  trainer = r1.grpo {},
}
