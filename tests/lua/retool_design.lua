--- Mathematics with a code interpreter, after ReTool (arXiv:2504.11536).
local python = r1.tools.python { timeout = 5, memory = "512MiB" }

local env = r1.env {
  tools = { python },
  format = "retool",      -- <code>…</code> -> <interpreter>…</interpreter>
  max_steps = 8,          -- reaching it truncates; done terminates
  reset = function(task)
    return { task = task, messages = { r1.user(task.problem) } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls == 0 then return { done = true } end
    for _, result in ipairs(r1.call_tools(action.tool_calls)) do r1.push(state.messages, r1.observation(result)) end
    return { reward = 0 }
  end,
}

local function context(state, budget)
  return r1.context(state.messages):keep_first(1):drop_oldest_until(budget.tokens)
end

local function reward(state, outcome)
  local correct = r1.math_equal(r1.last_boxed(outcome.text), state.task.answer)
  return { outcome = correct and 1 or -1, calls = { value = outcome.calls, weight = 0 } }
end

return r1.recipe {
  env = env, context = context, reward = reward,
  policy = { model = "models/r1-nano" },
  data = { train = r1.data.jsonl "train.jsonl", eval = r1.data.jsonl "eval.jsonl" },
  sampling = { temperature = 1.0, max_new_tokens = 256 },
  trainer = r1.grpo { group_size = 8, groups_per_step = 16, lr = 1e-6, clip = { 0.2, 0.28 } },
}
