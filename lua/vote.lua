--- Majority votes over sampled answers (self-consistency, arXiv:2203.11171):
--- `require("@r1/vote")`.

local check = require("@r1/options")

local vote = {}

--- The most frequent of a list of texts, and its share. Ties go to the one that comes first. An
--- entry that is false is an attempt without an answer: it counts in the share, and cannot win. Nil
--- and 0 if no attempt has one.
function vote.majority(answers)
  local counts, best = {}, nil
  for _, answer in ipairs(answers) do
    if answer then counts[answer] = (counts[answer] or 0) + 1 end
  end
  for _, answer in ipairs(answers) do
    if answer and (best == nil or counts[answer] > counts[best]) then best = answer end
  end
  return best, best and counts[best] / #answers or 0
end

-- One attempt: a conversation with tools until a reply has no call.
local function attempt(options, task, policy)
  local messages = options.prompt(task)
  for _ = 1, options.steps do
    local reply = policy:generate(messages)
    r1.push(messages, r1.assistant(reply))
    if #reply.tool_calls == 0 then return options.answer(reply.text) or false end
    for _, result in ipairs(r1.call_tools(reply.tool_calls, { state = policy.state })) do
      if result.ok then policy.state.successes = (policy.state.successes or 0) + 1 end
      r1.push(messages, r1.observation(result))
    end
  end
  return false
end

--- A flow (r1.env { flow = … }) of independent attempts whose answers vote. The recipe's reward
--- reads `state.voted` (the majority's answer, nil if no attempt has one), `state.agreement` (its
--- share) and `state.successes` (successful calls of all attempts).
---
--- Options, all required: `attempts`, `steps` (replies of an attempt at most), `prompt(task)` (the
--- first messages), `answer(text)` (the answer of a final reply as a text that can be compared, or
--- nil). The env needs `max_steps` of at least `attempts * steps`.
function vote.flow(options)
  options = check("vote.flow", options, { "attempts", "steps", "prompt", "answer" })
  return function(task, policy)
    local answers = {}
    for place = 1, options.attempts do answers[place] = attempt(options, task, policy) end
    policy.state.voted, policy.state.agreement = vote.majority(answers)
  end
end

return vote
