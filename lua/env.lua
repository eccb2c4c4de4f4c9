-- Defaults of an environment's functions.

local call_tools, push, assistant, observation, system = ...

local defaults = {}

--- The task's messages, or its prompt as a user message, after the system prompt.
function defaults.reset(task)
  local given = task.messages
  if given == nil then
    given = task.prompt or task.problem or task.question
    if type(given) == "string" then given = { { role = "user", content = given } } end
  end
  local messages = {}
  if system ~= "" and (given[1] or {}).role ~= "system" then
    messages[1] = { role = "system", content = system }
  end
  for _, message in ipairs(given) do messages[#messages + 1] = message end
  return { task = task, messages = messages }
end

--- A reply without calls ends the task, unless the reply was truncated; calls are executed.
function defaults.step(state, action)
  push(state.messages, assistant(action))
  if #action.tool_calls == 0 then
    local cut = action.finish_reason == "length" or action.finish_reason == "deadline"
    return { done = not cut, truncated = cut }
  end
  for _, result in ipairs(call_tools(action.tool_calls, { state = state })) do
    push(state.messages, observation(result))
  end
  return { reward = 0 }
end

return defaults
