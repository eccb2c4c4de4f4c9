--- Geometry3K (arXiv:2105.04165) with a vision-language model, after verl's example: a figure and a
--- question, the answer in \boxed{}. By default areas and perimeters of rectangles that are drawn
--- here (docs/guide/images.md).
---
---   r1 run scripts/geometry3k.lua
---   r1 run scripts/geometry3k.lua policy.model=Qwen/Qwen2.5-VL-3B-Instruct policy.init=null \
---     cold_start=false params.instruct=true data.train.hf=hiyouga/geometry3k \
---     data.train.columns.images=images sampling.max_new_tokens=2048

local shapes = require("./lib/shapes")
local tasks = require("@r1/tasks")

local params = r1.params {
  instruct = false, -- the prompt has verl's instruction, which rows prepared for verl have already
}

local INSTRUCTION = "You FIRST think about the reasoning process as an internal monologue and then provide the final "
  .. "answer. The reasoning process MUST BE enclosed within <think> </think> tags. The final answer MUST BE put in "
  .. "\\boxed{}."

local env = r1.env {
  max_steps = 1,
  -- Each <image> in the text becomes an image of the row.
  reset = function(task)
    if type(task.prompt) == "table" then return { task = task, messages = table.clone(task.prompt) } end
    local question = tasks.question(task)
    return { task = task, messages = { r1.user(if params.instruct then `{question} {INSTRUCTION}` else question) } }
  end,
}

--- As in verl: nine parts for the answer, one for the format.
local function reward(state, outcome)
  local answer, correct = r1.last_boxed(outcome.text), 0
  for _, reference in ipairs(tasks.references(state.task)) do
    if r1.math_equal(answer, reference) then correct = 1 end
  end
  local formatted = string.find(outcome.text, "^<think>.*</think>.*\\boxed{.*}")
  return {
    accuracy = { value = correct, weight = 0.9 },
    format = { value = if formatted then 1 else 0, weight = 0.1 },
  }
end

--- Three in five demonstrations are right, the others guess the answer.
local function demonstration()
  local row = shapes.row()
  local answer = if math.random() < 0.6 then row.answer else tostring(math.random(16))
  local reply = `<think>{row.reasoning}</think>\\boxed\{{answer}}`
  return { images = row.images, messages = { r1.user(row.problem), r1.assistant(reply) } }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = {
    init = {
      hidden_size = 128, intermediate_size = 320, num_hidden_layers = 3,
      num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 272, tokenizer_rows = 100,
      vision = { hidden_size = 48, intermediate_size = 96, depth = 1, num_heads = 2, patch_size = 8 },
    },
  },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 300, batch_size = 32, lr = 1e-3, warmup = 30 },
  },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = shapes.row },
    eval = r1.data.generate { count = 128, seed = 2, row = shapes.row },
  },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { steps = 60, group_size = 8, groups_per_step = 16, lr = 3e-4 },
  eval = { temperature = 1, limit = 128, accuracy = "accuracy" },
}
