--- A document that is longer than the context window, after MemAgent (arXiv:2507.02259): its pages
--- come one at a time, and when the window is full the policy replaces the oldest turns by a
--- summary, which is trained with the reward of the answer. By default a ledger for r1-nano; rows
--- with passages (MuSiQue, HotpotQA, 2WikiMultihopQA) are read passage by passage.
---
---   r1 check scripts/deep_research.lua --masks          the context, step by step
---   r1 run scripts/deep_research.lua
---   r1 run scripts/deep_research.lua policy.model=MODEL data.train=musique.jsonl params.notes=true

local ledger = require("./lib/ledger")
local rewards = require("@r1/rewards")
local tasks = require("@r1/tasks")

local params = r1.params {
  notes = false, -- a tool that keeps texts, which are shown again
  summary_tokens = 24, -- longest summary
  summarizer = "", -- a model that writes the summaries; by default the policy, and they are trained
}
local SYSTEM = "Say next to read on. Then give <answer>…</answer>."
local TITLE, LAST = "Summary:", "That was all."

local note = r1.tool {
  name = "note",
  description = "Keeps a short text; you see it again later.",
  parameters = { text = "string" },
  run = function(arguments, call)
    r1.push(call.state.notes, r1.clip(arguments.text, 200))
    return "kept"
  end,
}

--- What the policy reads before it writes a summary.
local function request(question, messages, earlier)
  local lines = { "Sum up for: " .. question, earlier }
  for _, message in ipairs(messages) do
    if message.role ~= "assistant" then r1.push(lines, message.content) end
  end
  return { r1.user(table.concat(lines, "\n")) }
end

local env = r1.env {
  tools = params.notes and { note } or {},
  max_steps = 40,
  reset = function(task)
    local state = { task = task, page = 0, summaries = 0, notes = {}, pages = task.pages or tasks.passages(task) }
    if #state.pages == 0 then error("the row has no `pages`, `paragraphs` or `context` to read") end
    state.messages = { r1.system(SYSTEM), r1.user(tasks.question(task)) }
    return state
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    for _, result in ipairs(r1.call_tools(action.tool_calls, { state = state })) do
      r1.push(state.messages, r1.observation(result))
    end
    if r1.answer(action.text) then return { done = true } end
    if #action.tool_calls > 0 then return {} end
    state.page += 1
    local page = state.pages[state.page]
    local title = page and page.title and page.title .. ": " or ""
    r1.push(state.messages, r1.user(page and title .. page.text or LAST))
    return {}
  end,
}

local function context(state, budget)
  local view = r1.context(state.messages):summarize {
    over = budget.tokens, memory = state, title = TITLE,
    write = function(messages, earlier)
      local prompt = request(tasks.question(state.task), messages, earlier)
      local other = params.summarizer ~= "" and params.summarizer or nil
      local text, why = r1.generate(prompt, {
        max_new_tokens = params.summary_tokens, model = other, train = other == nil,
      })
      if text == nil then error("no summary: " .. why, 0) end
      state.summaries += 1
      return text
    end,
  }
  if params.notes then view:recall { notes = state.notes, query = tasks.question(state.task) } end
  return view
end

local function reward(state, outcome)
  local references, answer = tasks.references(state.task), r1.answer(outcome.text)
  return {
    outcome = rewards.exact_match(answer, references),
    f1 = { value = rewards.f1(answer, references), weight = 0 },
    pages = { value = math.min(state.page, #state.pages) / #state.pages, weight = 0 },
    summaries = { value = state.summaries, weight = 0 },
    notes = { value = #state.notes, weight = 0 },
  }
end

return r1.recipe {
  env = env,
  context = context,
  reward = reward,
  policy = { model = "r1-nano", max_context = 256 },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = ledger.demonstrations(SYSTEM, request, TITLE, LAST) } },
    trainer = r1.sft { steps = 1000, batch_size = 24, lr = 1.5e-3, warmup = 50, overlong = "skip" },
  },
  data = {
    train = r1.data.generate { count = 20000, seed = 1, row = ledger.row },
    eval = r1.data.generate { count = 128, seed = 2, row = ledger.row },
  },
  sampling = { max_new_tokens = 16 },
  trainer = r1.grpo { steps = 120, group_size = 8, groups_per_step = 8, lr = 2e-4, decay = "linear" },
  eval = { temperature = 1, accuracy = "outcome" },
}
