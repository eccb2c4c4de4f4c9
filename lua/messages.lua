-- Messages: plain tables in the format of the OpenAI chat API.

local function check(name, content)
  local kind = type(content)
  if kind ~= "string" and kind ~= "table" then
    error("r1." .. name .. ": the content must be text or a list of parts, got " .. (content == nil and "nil" or "a " .. kind), 3)
  end
  return content
end

local messages = {}

function messages.user(content)
  return { role = "user", content = check("user", content) }
end

function messages.system(content)
  return { role = "system", content = check("system", content) }
end

--- A reply: the action itself, which keeps its exact text, or text.
function messages.assistant(action)
  local text = action
  if type(action) == "table" and action.text ~= nil then text = action.text end
  return { role = "assistant", content = check("assistant", text) }
end

--- The result of a tool: one of the results of r1.call_tools, or text.
function messages.observation(result)
  if type(result) == "string" then return { role = "tool", content = result } end
  if type(result) ~= "table" or type(result.content) ~= "string" then
    error("r1.observation: takes a result of r1.call_tools, or text", 2)
  end
  local content = result.content
  if result.images then
    content = table.clone(result.images)
    if result.content ~= "" then table.insert(content, 1, { type = "text", text = result.content }) end
  end
  return { role = "tool", content = content, name = result.name, tool_call_id = result.call_id }
end

--- Appends to a list and returns the list.
function messages.push(list, item)
  if type(list) ~= "table" then
    error("r1.push: the list is " .. (list == nil and "nil" or "a " .. type(list)) .. "; is it a field of the state?", 2)
  end
  if item == nil then error("r1.push: there is nothing to push", 2) end
  list[#list + 1] = item
  return list
end

return messages
