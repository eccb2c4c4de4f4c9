--- The search agent of Agent-R1's first generation, for chats with its published checkpoints
--- (docs/guide/recipes/speedrun.md): calls in <tool_call>, results as JSON in <tool_response>.
--- Without an
--- index it has a small generated knowledge base.
---
---   r1 infer --hf alphaXiv/Qwen-2.5-1.5b-instruct-grpo --script scripts/agent_r1.lua \
---     params.index=/data/hotpotqa-index --reply-prefix '<think>\n'

local knowledge = require("./lib/knowledge")
local rewards = require("@r1/rewards")
local tasks = require("@r1/tasks")

local params = r1.params {
  index = "", -- directory of `r1 index build`; relative to this script
  passages = 5, -- passages per search
}

local find
if params.index ~= "" then
  local index = r1.index.open(params.index)
  find = function(query) return index:search(query, { k = params.passages }) end
else
  local texts = {}
  for place, page in ipairs(knowledge.passages) do texts[place] = `{page.title} {page.text}` end
  local index = r1.text.index(texts)
  find = function(query)
    local found = {}
    for rank, hit in ipairs(index:search(query, params.passages)) do found[rank] = knowledge.passages[hit.index] end
    return found
  end
end

local search = r1.tool {
  name = "search",
  description = "Searches a collection of passages.",
  parameters = { query = { type = "string", description = "What to search for" } },
  run = function(arguments)
    local results = {}
    for rank, hit in ipairs(find(arguments.query)) do results[rank] = `{hit.title} {hit.text}` end
    return r1.json.encode { results = results }
  end,
}

return r1.recipe {
  env = r1.env {
    tools = { search },
    format = "hermes",
    system = "Think between <think> and </think> first. Then call the tool, or give the answer alone between <answer> and </answer>.",
    max_steps = 5,
    max_result_tokens = 2048,
  },
  reward = function(state, outcome)
    return rewards.exact_match(r1.answer(outcome.text), tasks.references(state.task))
  end,
  policy = { model = "r1-nano" },
  data = { train = r1.data.generate { count = 20000, seed = 1, row = knowledge.train } },
  sampling = { max_new_tokens = 512 },
  trainer = r1.grpo {},
  eval = { temperature = 0.7 },
}
