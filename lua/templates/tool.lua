--- {{name}}: questions with a tool. The env uses the default reset and step: a reply without calls
--- ends the task, calls are executed.
---
---   r1 check {{file}}
---   r1 run {{file}}

-- A sum of products of numbers: 12*34+5.
local function evaluate(text)
  local sum
  for sign, term in string.gmatch("+" .. text, "([+-])%s*([^+-]+)") do
    local product = 1
    for factor in string.gmatch(term, "[^*]+") do
      local number = tonumber(factor)
      if number == nil then return nil end
      product *= number
    end
    sum = (sum or 0) + (sign == "-" and -product or product)
  end
  return sum
end

local calculate = r1.tool {
  name = "calculate",
  description = "Works out a sum of products, such as 12*34+5.",
  parameters = { code = { type = "string", description = "The sum" } },
  run = function(arguments)
    local result = evaluate(string.match(arguments.code, "^print%((.*)%)$") or arguments.code)
    -- An error is also a result: it is shown to the policy.
    if result == nil then return nil, "this is not a sum of products of numbers" end
    return string.format("%d", result)
  end,
}

local env = r1.env {
  tools = { calculate },
  format = "retool", -- the format of r1-nano; leave this out for other models
  max_steps = 3, -- reaching this limit truncates
}

--- 1 for the correct answer; the number of calls is only logged.
local function reward(state, outcome)
  local answer = r1.last_boxed(outcome.text) or string.match(outcome.text, "(%-?%d+)%D*$")
  local correct = r1.math_equal(answer, state.task.answer)
  return { outcome = correct and 1 or 0, calls = { value = outcome.calls, weight = 0 } }
end

local NAMES = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }
local THINGS = { "apples", "books", "cards", "eggs", "lamps", "pens", "rings", "seeds" }

local function question()
  local boxes, each, thing = math.random(32, 98), math.random(32, 98), THINGS[math.random(#THINGS)]
  local name = NAMES[math.random(#NAMES)]
  return {
    problem = `{name} has {boxes} boxes with {each} {thing} in each. How many {thing} in all?`,
    answer = tostring(boxes * each),
  }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = question },
    eval = r1.data.generate { count = 100, seed = 2, row = question },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 40, group_size = 8, groups_per_step = 16, lr = 2e-4 },
  eval = { temperature = 1 },
}
