--- {{name}}: questions that need a search. The pages are in {{name}}_pages.jsonl, which is read and
--- indexed once for all trajectories. r1.http (with `needs = { "http" }`) can replace it.
---
---   r1 check {{file}}
---   r1 run {{file}}

-- One JSON object per line: person, title, text. Read-only; runs record its hash.
local pages = r1.resource "{{name}}_pages.jsonl"
local index = r1.text.index(pages, { column = "title" })

local search = r1.tool {
  name = "search",
  description = "Finds the page whose title is most like the query.",
  parameters = { code = { type = "string", description = "The query" } },
  -- A tool receives its arguments and the state of the trajectory.
  run = function(arguments, call)
    local hit = index:search(`{arguments.code} {call.state.task.about}`, 1)[1]
    local page = hit and pages[hit.index]
    if page and string.find(arguments.code, page.kind, 1, true) then return page.text end
    return nil, "nothing was found"
  end,
}

local env = r1.env {
  tools = { search },
  format = "retool", -- the format of r1-nano; leave this out for other models
  max_steps = 4, -- reaching this limit truncates
}

--- 1 for the correct answer, 0.1 for one in the required format.
local function reward(state, outcome)
  local answer = r1.last_boxed(outcome.text)
  local correct = r1.math_equal(answer, state.task.answer)
  return {
    answer = correct and 1 or 0,
    form = { value = answer ~= nil and 1 or 0, weight = correct and 0 or 0.1 },
    searches = { value = outcome.calls, weight = 0 },
  }
end

-- The answer must be looked up: a guess is wrong.
local function question()
  local page = pages[math.random(#pages)]
  if page.kind == "note" then
    return {
      problem = `{page.about} left a note. Print note and do what it says. What is the result?`,
      about = page.about,
      answer = page.text,
    }
  end
  local each, guess = math.random(32, 98), math.random(32, 98)
  return {
    problem = `Each crate holds {each} pens. The number of crates is stock, or {guess} if stock is unknown. How many pens?`,
    about = page.about,
    answer = page.text,
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
  trainer = r1.grpo { steps = 24, group_size = 8, groups_per_step = 12, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "answer" },
}
