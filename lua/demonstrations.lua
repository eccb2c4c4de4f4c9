--- Demonstrations for a cold start: conversations of a good solver, as rows of r1.sft
--- (docs/guide/sft.md).

local demonstrations = {}

--- A call of a tool as an assistant message. `text` goes before it.
function demonstrations.call(name, arguments, text)
  return { role = "assistant", content = text or "", tool_calls = { { name = name, arguments = arguments } } }
end

--- The result of a tool.
function demonstrations.result(name, text)
  return { role = "tool", name = name, content = text }
end

--- A row: `messages` after the system prompt, with the schemas of `tools`, which must be the tools
--- of the env for the prompt to be the same.
function demonstrations.row(system, tools, messages)
  local list, schemas = {}, {}
  if system and system ~= "" then list[1] = r1.system(system) end
  for _, message in ipairs(messages) do list[#list + 1] = message end
  for place, tool in ipairs(tools or {}) do schemas[place] = tool.schema end
  return { messages = list, tools = #schemas > 0 and schemas or nil }
end

return demonstrations
