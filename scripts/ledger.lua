--- A long task in a short context: amounts arrive one at a time, the policy reads only the last
--- turns and stores what it needs with a tool. Its notes are added to the context; if the context
--- is still too long, the policy replaces old turns by a summary, which is trained.
---
---   r1 check scripts/ledger.lua --masks          the context, step by step
---   r1 run scripts/ledger.lua policy.model=Qwen/Qwen2.5-1.5B-Instruct

local TASK = "You keep a ledger. Amounts come in one at a time; you see the latest only, so write the balance down with the tool "
  .. "`note` after each. When you are asked for it, give the balance as \\boxed{…}."

local note = r1.tool {
  name = "note",
  description = "Writes something down; you will see it later",
  parameters = { text = "string" },
  run = function(arguments, call)
    r1.push(call.state.notes, r1.clip(arguments.text, 80))
    return "noted"
  end,
}

--- The next user message: another amount, or the question.
local function next_line(state)
  state.shown = state.shown + 1
  local amount = state.task.amounts[state.shown]
  if amount then return (amount < 0 and "Paid: " or "Received: ") .. math.abs(amount) end
  return "What is the balance?"
end

local env = r1.env {
  tools = { note },
  max_steps = 16,
  reset = function(task)
    local state = { task = task, shown = 0, notes = {}, messages = { r1.system(TASK) } }
    r1.push(state.messages, r1.user(next_line(state)))
    return state
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls > 0 then
      for _, result in ipairs(r1.call_tools(action.tool_calls, { state = state })) do
        r1.push(state.messages, r1.observation(result))
      end
    elseif state.shown > #state.task.amounts then
      return { done = true }
    end
    if state.shown <= #state.task.amounts then r1.push(state.messages, r1.user(next_line(state))) end
    return { reward = 0 }
  end,
}

--- The task, the last two turns and the latest notes; if that is too long, a summary of the rest.
local function context(state, budget)
  local latest = {}
  for index = math.max(1, #state.notes - 2), #state.notes do r1.push(latest, state.notes[index]) end
  return r1.context(state.messages)
    :summarize { over = budget.tokens, memory = state, max_new_tokens = 64, train = true }
    :keep_first(1)
    :last_turns(2)
    :recall { notes = latest, query = table.concat(latest, " "), title = "Your notes:" }
end

local function reward(state, outcome)
  local said = r1.last_boxed(outcome.text)
  local right = said ~= nil and r1.math_equal(said, state.task.answer)
  return {
    outcome = right and 1 or 0,
    format = { value = said and 1 or 0, weight = 0.1 },
    notes = { value = #state.notes, weight = 0 },
  }
end

--- A row is a function of its index, which seeds `math.random`.
local function row()
  local amounts, balance = {}, 0
  for k = 1, math.random(3, 6) do
    amounts[k] = math.random(1, 20) * (math.random() < 0.3 and -1 or 1)
    balance = balance + amounts[k]
  end
  return { amounts = amounts, answer = balance }
end

return r1.recipe {
  env = env,
  context = context,
  reward = reward,
  data = {
    train = r1.data.generate { count = 10000, seed = 1, row = row },
    eval = r1.data.generate { count = 128, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 96 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 8, lr = 1e-6 },
}
