--- The result of r1 check.

local formats = ...

local STYLES = { error = "red.bold", warning = "yellow.bold", note = "bold" }

local function plural(count, word)
  return `{count} {word}{if count == 1 then "" else "s"}`
end

--- How many tasks, trajectories and rows were tried.
local function tried(result, add)
  local tasks = formats.counted(result.rows, "task", "tasks")
  local eval = if result.eval_tasks > 0 then ` and {result.eval_tasks} of data.eval` else ""
  local trajectories = formats.counted(result.trajectories, "trajectory", "trajectories")
  local seconds = string.format("%.1f", result.seconds)
  local range = result.reward_range
  local rewards = if range then `; rewards from {range[1]} to {range[2]}` else ""
  add(
    `{trajectories} of {result.tasks} of {tasks}{eval} with scripted replies, `
      .. `{formats.counted(result.steps, "step", "steps")}, in {seconds} s{rewards}; `
      .. `longest prompt {result.longest_prompt} tokens, budget {result.budget}`
  )
  for _, rows in result.tried do
    local more = if rows.tried < rows.of then "; --rows all tries every row" else ""
    add(`{rows.tried} of {rows.of} rows of data.{rows.split} began a trajectory{more}`)
  end
end

local function conversations(report)
  return `{report.tasks} of {report.rows} conversations, the longest of {report.longest_prompt} tokens, `
    .. `the context holds {report.budget}`
end

local function finding(it, script, add)
  add(`\n{formats.paint(STYLES[it.level], it.level)} ({it.rule}): {it.message}`)
  if it.place then add(`  --> {it.place}`) end
  if it.hint then add(`  {formats.paint("cyan", "hint")}: {it.hint}`) end
  if #it["repeat"] > 0 then
    add(`  to see it: r1 repl {script}`)
    for _, typed in it["repeat"] do
      for _, line in formats.lines(typed) do add(`    {formats.first(line, 100)}`) end
    end
  end
end

return function(result)
  local lines = {}
  local function add(line) table.insert(lines, line) end
  if result.objective then
    add(`{result.script}: {result.objective}`)
    tried(result, add)
  else
    add(`{result.script}: {conversations(result)}`)
  end
  if result.cold_start then add(`cold start: {conversations(result.cold_start)}`) end
  if result.stands_in then add("tokens are those of r1-nano: the recipe's model is not on this machine") end
  for _, line in result.outside do add(line) end
  for _, it in result.model or {} do
    add(`the model, {it.id}: {it.status} after {it.steps} steps, reward {formats.signed(it.reward)}`)
  end
  for _, line in result.log do add(`  {line}`) end
  if result.more_log > 0 then add(`  log      {result.more_log} more`) end
  local counts = { error = 0, warning = 0, note = 0 }
  for _, it in result.findings do
    counts[it.level] += 1
    finding(it, result.script, add)
  end
  if counts.error + counts.warning > 0 then
    add(`\n{plural(counts.error, "error")}, {plural(counts.warning, "warning")}`)
  elseif #result.findings == 0 then
    add("no problems found")
  else
    add("\nno problems found, apart from what the notes say")
  end
  return table.concat(lines, "\n") .. "\n"
end
