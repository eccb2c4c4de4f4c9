--- Search for papers, after PaperScout (arXiv:2601.10029): the policy searches an index and expands
--- papers into their references. The prompt of a step has the found papers, expanded and not,
--- instead of the conversation. Trained by PSPO with rewards scaled by their running deviation.
---
---   r1 run scripts/paperscout.lua
---   r1 run scripts/paperscout.lua policy.model=Qwen/Qwen3-4B-Instruct-2507 cold_start=false \
---     params.corpus=papers.jsonl data.train=queries.jsonl data.eval=queries_eval.jsonl

local demonstrations = require("@r1/demonstrations")
local library = require("./lib/library")
local papers = require("@r1/papers")
local tasks = require("@r1/tasks")

local params = r1.params {
  corpus = "", -- JSONL with id, title, abstract, references; relative to this script
  found = 3, -- papers per search (10 in the paper)
  shown = 6, -- papers of each list in the prompt (10 in the paper)
  abstract = 2000, -- characters of an abstract in the prompt
}
local SYSTEM = "Find papers: search, expand. Say done when you have them."

local tools, found_by = papers.tools(params.corpus ~= "" and r1.resource(params.corpus) or library.corpus, { k = params.found })

local env = r1.env {
  tools = tools,
  max_steps = 5,
  max_calls = 5,
  call_rewards = { malformed = -0.5 },
  reset = function(task)
    return { task = task, messages = {}, errors = {}, papers = papers.start(tasks.references(task)) }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    state.errors = {}
    for _, result in ipairs(r1.call_tools(action.tool_calls, { state = state })) do
      local message = r1.observation(result)
      r1.push(state.messages, message)
      if not result.ok then r1.push(state.errors, `Error: {message.content}`) end
    end
    return { done = #action.tool_calls == 0 }
  end,
}

--- Each prompt is new: the query, the two lists, the calls so far and the errors of the last ones.
local function context(state)
  local lines = { state.task.query or tasks.question(state.task) }
  r1.push(lines, papers.text(state.papers, { each = params.shown, abstract = params.abstract }))
  for _, text in ipairs(state.errors) do r1.push(lines, text) end
  return { r1.system(SYSTEM), r1.user(table.concat(lines, "\n")) }
end

--- What is trained are the process rewards of calls; these parts are logged.
local function reward(state, outcome)
  local recall, precision = papers.quality(state.papers)
  local sum = recall + precision
  return {
    recall = { value = recall, weight = 0 },
    precision = { value = precision, weight = 0 },
    f1 = { value = sum > 0 and 2 * recall * precision / sum or 0, weight = 0 },
    calls = { value = outcome.calls, weight = 0 },
  }
end

--- Single steps of a reader who stops early, or expands or searches at random, in a third of the
--- steps. Two in five are first steps, in which the topic is read.
local function demonstration()
  local task = library.row()
  local state = { task = task, errors = {}, papers = papers.start(task.answers) }
  for _ = 1, if math.random() < 0.4 then 0 else math.random(4) do
    local call = library.plan(state.papers, task, 1)
    if call then found_by[call.name](state.papers, call.arguments.query or call.arguments.id) end
  end
  local messages, call = context(state), library.plan(state.papers, task, 0.67)
  r1.push(messages, call and demonstrations.call(call.name, call.arguments) or r1.assistant("done"))
  return demonstrations.row("", tools, messages)
end

return r1.recipe {
  env = env,
  context = context,
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = demonstration } },
    trainer = r1.sft { steps = 600, batch_size = 24, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = library.row },
    eval = r1.data.generate { count = 64, seed = 2, row = library.row },
  },
  sampling = { max_new_tokens = 96 },
  trainer = r1.ppo {
    loss = "pspo", shaping = { running = 1 }, steps = 30, groups_per_step = 64,
    kl = { coef = 0.001, kind = "k3" }, lr = 2e-4, critic = { lr = 2e-4 },
  },
  eval = { temperature = 1, accuracy = "recall" },
}
