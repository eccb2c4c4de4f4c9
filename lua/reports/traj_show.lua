--- The result of r1 traj show: a trajectory with its rewards, its conversation and its steps.

local formats = ...

--- Lines of a message and characters of a line, without --whole.
local LINES, WIDTH = 20, 400

local COLOURS = { system = "magenta", user = "blue", assistant = "green", tool = "yellow" }

local function cut(line, whole)
  local short = if whole then line else formats.first(line, WIDTH)
  return if short == line then line else short .. "…"
end

--- A text below a heading of ten columns.
local function block(heading, style, text, whole)
  local lines = formats.lines(text)
  local limit = if whole then #lines else math.min(#lines, LINES)
  local out = "  " .. formats.paint(style, heading) .. string.rep(" ", math.max(10 - #heading, 1)) .. cut(lines[1] or "", whole) .. "\n"
  for index = 2, limit do out ..= string.rep(" ", 12) .. cut(lines[index], whole) .. "\n" end
  if limit < #lines then
    out ..= formats.paint("dim", `{string.rep(" ", 12)}… {formats.counted(#lines - limit, "more line", "more lines")}; --whole shows them`) .. "\n"
  end
  return out
end

local function content(message)
  if type(message.content) ~= "table" then return message.content or "" end
  local text = ""
  for _, part in message.content do text ..= part.text or `[{part.type} {part.hash}]` end
  return text
end

--- A value as text: data like JSON, with sorted names.
local function shown(value)
  if type(value) == "string" then return `"{value}"` end
  if type(value) ~= "table" then return tostring(value) end
  local items = {}
  if #value > 0 then
    for _, item in value do table.insert(items, shown(item)) end
    return `[{table.concat(items, ", ")}]`
  end
  local names = {}
  for name in value do table.insert(names, name) end
  table.sort(names)
  for _, name in names do table.insert(items, `{name} = {shown(value[name])}`) end
  return "{ " .. table.concat(items, ", ") .. " }"
end

--- The columns of a task, each below the other.
local function task(value)
  if type(value) ~= "table" then return tostring(value) end
  local names = {}
  for name in value do table.insert(names, name) end
  table.sort(names)
  local lines = {}
  for _, name in names do
    local column = value[name]
    table.insert(lines, `{name}: {if type(column) == "string" then column else shown(column)}`)
  end
  return table.concat(lines, "\n")
end

local function messages(result)
  local text = ""
  for _, message in result.messages do
    local said = content(message)
    for _, call in message.tool_calls or {} do
      said ..= (if said == "" then "" else "\n") .. `→ {call.name} {shown(call.arguments)}`
    end
    if message.reasoning_content then text ..= block("reasoning", "dim", message.reasoning_content, result.whole) end
    text ..= block(message.role, COLOURS[message.role] or "bold", said, result.whole)
  end
  return text
end

local function steps(result)
  local rows = { { "step", "reward", "advantage", "prompt", "tokens", "calls", "finish" } }
  for index, step in result.steps do
    local advantage = (result.advantages or {})[index]
    local finish = if step.terminated then `{step.finish_reason}, terminated`
      elseif step.truncated then `{step.finish_reason}, truncated`
      else step.finish_reason
    table.insert(rows, {
      tostring(index - 1),
      formats.signed(step.reward),
      if advantage then string.format("%+.3f", advantage) else "-",
      formats.thousands(step.prompt_tokens),
      formats.thousands(step.response_tokens),
      tostring(#step.tools),
      finish,
    })
  end
  return formats.grid(rows)
end

local function calls(result)
  local text = ""
  for index, step in result.steps do
    for _, tool in step.tools do
      local kind = tool.kind or "ran"
      local ending = if kind ~= "ran" then kind elseif tool.ok then "ok" else "failed"
      local by = if tool.hidden then ", by the script" else ""
      local seconds = if tool.seconds then formats.duration(tool.seconds) else "-"
      local heading = `step {index - 1}: {formats.paint("bold", tool.name)} {formats.paint(if ending == "ok" then "green" else "red", ending)}, {seconds}{by}`
      text ..= `  {heading}\n` .. block("", "dim", shown(tool.arguments), result.whole) .. block("→", "dim", tool.output, result.whole)
    end
  end
  return text
end

return function(result)
  local truncated = if result.truncated_by then ` by {result.truncated_by}` else ""
  local dropped = if result.dropped then ", dropped by the filter" else ""
  local heading = `trajectory {result.id}: {result.status}{truncated}{dropped}, reward {formats.signed(result.reward)}`
  local text = formats.paint("bold", heading) .. "\n"
  local counts = {
    formats.counted(#result.steps, "step", "steps"),
    formats.counted(result.tokens, "sampled token", "sampled tokens"),
    formats.counted(result.tool_calls, "tool call", "tool calls"),
    formats.duration(result.seconds),
    `task {result.task_index}`,
    `seed {result.seed}`,
  }
  if result.policy_version then table.insert(counts, `policy version {result.policy_version}`) end
  if result.fork then table.insert(counts, `forked from {result.fork.parent} after {result.fork.step}`) end
  text ..= `  {table.concat(counts, ", ")}\n`
  local parts = {}
  for name in result.parts do table.insert(parts, name) end
  table.sort(parts)
  for index, name in parts do
    local value = result.parts[name]
    parts[index] = `{name} {formats.signed(value)}`
  end
  if #parts > 0 then text ..= `  {table.concat(parts, ", ")}\n` end
  if result.error then text ..= block("error", "red", result.error, true) end
  text ..= "\n" .. block("task", "cyan", task(result.task), result.whole)
  if #result.messages > 0 then
    text ..= "\n" .. messages(result)
  else
    for index, step in result.steps do text ..= block(`reply {index - 1}`, "green", step.text, result.whole) end
  end
  if #result.steps > 0 then text ..= "\n" .. steps(result) end
  local made = calls(result)
  return text .. (if made == "" then "" else "\n" .. made) .. "\n"
end
