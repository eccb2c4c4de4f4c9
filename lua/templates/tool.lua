--- {{name}}: questions that a tool helps with. The env's own reset and step are the usual ones: a reply without calls ends
--- the task, calls are answered.
---
---   r1 check {{file}}
---   r1 run {{file}}

local add = r1.tool {
  name = "add",
  description = "Adds two whole numbers.",
  parameters = {
    a = { type = "integer", description = "The first number" },
    b = { type = "integer", description = "The second number" },
  },
  run = function(arguments) return tostring(arguments.a + arguments.b) end,
}

local env = r1.env {
  tools = { add },
  max_steps = 4, -- reaching it truncates
  system = "Use the tool, then answer with the number alone.",
}

--- 1 for the right answer; the number of calls is only logged.
local function reward(state, outcome)
  local answer = string.match(outcome.text, "(%-?%d+)%D*$")
  local correct = answer ~= nil and r1.math_equal(answer, state.task.answer)
  return { outcome = correct and 1 or 0, calls = { value = state.calls, weight = 0 } }
end

local function question(index)
  local a, b = math.random(10, 999), math.random(10, 999)
  return { problem = "How much is " .. a .. " plus " .. b .. "?", answer = tostring(a + b) }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = question },
    eval = r1.data.generate { count = 100, seed = 2, row = question },
  },
  sampling = { max_new_tokens = 96 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 8, lr = 1e-4 },
}
