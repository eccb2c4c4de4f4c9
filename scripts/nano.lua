--- Makes the embedded model, models/r1-nano, from nothing: a tokenizer and a small Qwen2, trained on demonstrations
--- this file writes itself. It is deliberately half-trained: half of its traces guess the answer instead of asking the
--- interpreter, so that reinforcement learning has something to teach.
---
---   r1 sft scripts/nano.lua --out models/r1-nano

local problems = require("./lib/problems")

--- Asks the interpreter, program by program, then answers (the ReTool form).
local function retool_trace(made)
  local messages = { r1.user(made.problem) }
  for _, call in ipairs(made.plan) do
    r1.push(messages, r1.assistant("<code>" .. call.code .. "</code>"))
    r1.push(messages, { role = "tool", content = call.output })
  end
  r1.push(messages, r1.assistant("<answer>\\boxed{" .. made.answer .. "}</answer>"))
  return { messages = messages, format = "retool" }
end

--- Answers at once. For products of two-digit numbers that is a guess.
local function direct_trace(made)
  return {
    messages = { r1.user(made.problem), r1.assistant("<answer>\\boxed{" .. made.answer .. "}</answer>") },
    format = "retool",
  }
end

--- The same calls in the Hermes form, with the tool's schema in the system prompt.
local function hermes_trace(made)
  local messages = { r1.user(made.problem) }
  for _, call in ipairs(made.plan) do
    r1.push(messages, {
      role = "assistant",
      content = "",
      tool_calls = { { name = "python", arguments = { code = call.code } } },
    })
    r1.push(messages, { role = "tool", name = "python", content = call.output })
  end
  r1.push(messages, r1.assistant("The answer is " .. made.answer .. "."))
  return { messages = messages, tools = { problems.python_schema }, format = "hermes" }
end

local chat = {
  { "Hello!", "Hello! Ask me a problem about numbers." },
  { "Hi", "Hello! Ask me a problem about numbers." },
  { "Who are you?", "I am r1-nano, a small model that works with a tool." },
  { "What can you do?", "I solve small problems about numbers with a code interpreter." },
  { "Thank you!", "You are welcome!" },
  { "Bye", "Goodbye!" },
}

local function chat_trace()
  local messages = {}
  for _ = 1, math.random(2) do
    local pair = chat[math.random(#chat)]
    r1.push(messages, r1.user(pair[1]))
    r1.push(messages, r1.assistant(pair[2]))
  end
  return { messages = messages, format = "retool" }
end

local function demonstration()
  local kind = math.random()
  if kind < 0.04 then return chat_trace() end
  local made = problems.problem()
  if kind < 0.16 then return hermes_trace(made) end
  if kind < 0.65 then return direct_trace(made) end
  return retool_trace(made)
end

return r1.recipe {
  policy = {
    init = {
      hidden_size = 192, intermediate_size = 512, num_hidden_layers = 4,
      num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 512,
      special_tokens = {
        "<code>", "</code>", "<interpreter>", "</interpreter>", "<answer>", "</answer>",
        "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
      },
    },
  },
  data = { train = r1.data.generate { count = 1000000, seed = 7, row = demonstration } },
  checkpoint = { every = 200, export = "bf16" },
  trainer = r1.sft { steps = 2000, batch_size = 96, lr = 3e-3, warmup = 50, weight_decay = 0.05 },
}
