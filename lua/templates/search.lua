--- {{name}}: questions that are answered by searching. The pages are in this file; r1.http (with `needs = { "http" }`) or a
--- file of one's own can take their place.
---
---   r1 check {{file}}
---   r1 run {{file}}

local PAGES = {
  { title = "Nile", text = "The Nile flows through Egypt into the Mediterranean Sea. It is 6650 km long." },
  { title = "Danube", text = "The Danube rises in the Black Forest and flows into the Black Sea. It is 2850 km long." },
  { title = "Volga", text = "The Volga is the longest river of Europe. It is 3530 km long and ends in the Caspian Sea." },
  { title = "Rhine", text = "The Rhine rises in the Alps and flows into the North Sea. It is 1230 km long." },
}

-- Words of a text, as a set.
local function words(text)
  local found = {}
  for word in string.gmatch(string.lower(text), "%w+") do found[word] = true end
  return found
end

local search = r1.tool {
  name = "search",
  description = "Finds the page that fits a query best.",
  parameters = { query = { type = "string", description = "Words to look for" } },
  run = function(arguments)
    local best, most = nil, 0
    for _, page in ipairs(PAGES) do
      local own, hits = words(page.title .. " " .. page.text), 0
      for word in pairs(words(arguments.query)) do hits = hits + (own[word] and 1 or 0) end
      if hits > most then best, most = page, hits end
    end
    if best == nil then return nil, "nothing was found" end
    return best.title .. ": " .. best.text
  end,
}

local env = r1.env {
  tools = { search },
  max_steps = 5,
  system = "Search for what you don't know. Give the answer between <answer> and </answer>.",
}

--- 1 for the right answer, 0.1 for one in the right form.
local function reward(state, outcome)
  local answer = r1.answer(outcome.text)
  local correct = answer ~= nil and string.lower(answer) == string.lower(state.task.answer)
  return {
    answer = correct and 1 or 0,
    form = { value = answer ~= nil and 1 or 0, weight = correct and 0 or 0.1 },
    searches = { value = state.calls, weight = 0 },
  }
end

local QUESTIONS = {
  { question = "Into which sea does the Danube flow?", answer = "Black Sea" },
  { question = "Into which sea does the Volga flow?", answer = "Caspian Sea" },
  { question = "Where does the Rhine rise?", answer = "Alps" },
  { question = "How many kilometres long is the Nile?", answer = "6650" },
}

local function row(index) return QUESTIONS[(index - 1) % #QUESTIONS + 1] end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 400, row = row },
    eval = r1.data.generate { count = #QUESTIONS, row = row },
  },
  sampling = { max_new_tokens = 96 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 4, lr = 1e-4 },
}
