--- Questions of several hops over a search tool, after Agent-R1 (arXiv:2511.14460) and Search-R1
--- (arXiv:2503.09516): HotpotQA, 2WikiMultihopQA, MuSiQue, or by default a generated knowledge base
--- that r1-nano learns to search.
---
---   r1 run scripts/search_qa.lua
---   r1 run scripts/search_qa.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct params.index=/data/wiki \
---     params.passages=3 data.train=hotpotqa.jsonl data.eval=hotpotqa_dev.jsonl
---
--- With params.questions, a file of questions with their paragraphs, the search is over all these
--- paragraphs, and the cold start learns from four fifths of the questions:
---
---   r1 run scripts/search_qa.lua policy.model=smollm2-135m params.questions=hotpotqa.jsonl \
---     cold_start.trainer.lr=2e-4 cold_start.trainer.steps=150 trainer.lr=1e-5

local demonstrations = require("@r1/demonstrations")
local rewards = require("@r1/rewards")
local search = require("@r1/search")
local search_r1 = require("@r1/formats/search_r1")
local tasks = require("@r1/tasks")

local params = r1.params {
  index = "", -- directory of `r1 index build`; relative to this script
  url = "", -- or a retrieval server
  questions = "", -- or a file of questions with paragraphs; relative to this script
  passages = 1, -- passages per search
  reward = "em", -- em, f1, or qa_em_and_format (Agent-R1's, from -1 to 1)
}
local SYSTEM = "Search, then give the answer alone in <answer></answer>."

local knowledge = params.questions == "" and require("./lib/knowledge") or require("./lib/multihop")(params.questions)
local tool
if params.url ~= "" then
  tool = r1.tools.search { url = params.url, k = params.passages, retries = 2 }
elseif params.index ~= "" then
  tool = r1.tools.search { index = params.index, k = params.passages }
else
  tool = search.tool(knowledge.passages, { k = params.passages })
end

local function reward(state, outcome)
  local references, answer = tasks.references(state.task), r1.answer(outcome.text)
  local scores = { em = rewards.exact_match(answer, references), f1 = rewards.f1(answer, references) }
  scores.qa_em_and_format = rewards.qa_em_and_format(state.messages, references)
  return {
    outcome = scores[params.reward],
    em = { value = scores.em, weight = 0 },
    f1 = { value = scores.f1, weight = 0 },
    recall = { value = search.recall(state.messages, tasks.supporting_titles(state.task)), weight = 0 },
    searches = { value = outcome.calls, weight = 0 },
  }
end
if not table.find({ "em", "f1", "qa_em_and_format" }, params.reward) then
  error("params.reward is em, f1 or qa_em_and_format, got " .. params.reward, 0)
end

--- Half of the demonstrations search twice, the others stop early: they answer with a shelf at
--- random, or with the order that the first search found.
local function demonstration()
  local row, kind = knowledge.invented(), math.random()
  local messages, fact = { r1.user(row.question) }, row.fact
  local function look_up(query, page)
    r1.push(messages, demonstrations.call("search", { query = query }))
    r1.push(messages, demonstrations.result("search", search.text { page }))
  end
  local known = `shelf {math.random(10, 99)}`
  if kind > 0.2 then
    look_up(fact.lot, fact.pages[1])
    known = fact.order
    if kind > 0.5 then
      look_up(fact.order, fact.pages[2])
      known = row.answer
    end
  end
  r1.push(messages, r1.assistant(`<answer>{known}</answer>`))
  return demonstrations.row(SYSTEM, { tool }, messages)
end

-- Demonstrations from the file have their own form.
local function of_file(index) return knowledge.demonstration(index, SYSTEM, { tool }, params.passages) end

return r1.recipe {
  env = r1.env {
    tools = { tool },
    format = search_r1, -- env.format=auto on the command line: that of the model, as in Agent-R1
    system = SYSTEM,
    max_steps = 5,
    call_rewards = { malformed = -0.1 },
  },
  reward = reward,
  policy = { model = "r1-nano" },
  cold_start = {
    data = { train = r1.data.generate { count = 20000, seed = 3, row = knowledge.demonstration and of_file or demonstration } },
    trainer = r1.sft { steps = 1000, batch_size = 24, lr = 1.5e-3, warmup = 50 },
  },
  data = {
    train = r1.data.generate { count = knowledge.train_count, seed = 1, row = knowledge.train },
    eval = r1.data.generate { count = knowledge.held_out_count, seed = 2, row = knowledge.held_out },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 60, group_size = 8, groups_per_step = 8, lr = 2e-4 },
  eval = { temperature = 1, accuracy = "em" },
  needs = params.url ~= "" and { params.url } or nil,
}
