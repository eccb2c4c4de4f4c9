--- A tool-call format defined in a recipe: the format of Search-R1, with a few pages.
---
---   r1 check scripts/search_format.lua
---   r1 test scripts/search_format_test.lua
---   r1 infer --script scripts/search_format.lua --model MODEL

local search_r1 = require("@r1/formats/search_r1")

local CAPITALS = { France = "Paris", Japan = "Tokyo", Peru = "Lima", Kenya = "Nairobi", Norway = "Oslo", Cuba = "Havana" }
local countries, pages = {}, {}
for country, capital in pairs(CAPITALS) do
  table.insert(countries, country)
  table.insert(pages, "The capital of " .. country .. " is " .. capital .. ".")
end
table.sort(countries)
table.sort(pages)

local search = r1.tool {
  name = "search",
  description = "Finds pages by their words",
  parameters = { query = "string" },
  run = function(arguments)
    local best = r1.text.rank(arguments.query, pages)[1]
    return best and best.score > 0 and pages[best.index] or "nothing found"
  end,
}

local function question(index)
  local country = countries[math.random(#countries)]
  return { problem = "What is the capital of " .. country .. "?", answer = CAPITALS[country] }
end

return r1.recipe {
  env = r1.env {
    tools = { search },
    format = search_r1,
    system = "Reason step by step. Give the final answer as <answer>…</answer>.",
    max_steps = 4,
    max_calls = 2,
    call_rewards = { malformed = -0.1 },
  },
  reward = function(state, outcome)
    local given = outcome.text:match("<answer>%s*(.-)%s*</answer>")
    return given == r1.reference(state.task.answer) and 1 or 0
  end,
  policy = { model = "r1-nano" },
  data = { train = r1.data.generate { count = 10000, seed = 1, row = question } },
  sampling = { temperature = 1.0, max_new_tokens = 96 },
  trainer = r1.grpo { steps = 20, group_size = 8, groups_per_step = 8, lr = 1e-4 },
}
