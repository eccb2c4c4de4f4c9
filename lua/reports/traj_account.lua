--- The result of r1 traj account: what became of a run's tasks, and what does not fit together.

local formats = ...

local LABELS = { { "trained", "trained" }, { "dropped", "dropped" }, { "failed", "failed" }, { "unused", "in no update" } }
local TIMES = { ["1"] = "once", ["2"] = "twice" }

local function range(word, first, last)
  return if first == last then `{word} {first}` else `{word}s {first} to {last}`
end

--- Groups by their positions in the data.
local function positions(list)
  return if #list == 0 then "no group" else "the groups at the positions " .. table.concat(list, ", ")
end

local PROBLEMS = {
  damaged = function(it) return `step {it.step}: {it.message}` end,
  missing_steps = function(it)
    local tasks = if it.tasks then `; {formats.counted(it.tasks, "task was", "tasks were")} drawn there` else ""
    return `{range("step", it.first, it.last)}: no file{tasks}`
  end,
  position = function(it)
    return `step {it.step}: begins after {formats.counted(it.position, "task", "tasks")}, and the steps before drew {it.expected}`
  end,
  missing_groups = function(it) return `step {it.step}: {range("group", it.first, it.last)} not stored` end,
  carried = function(it)
    return `step {it.step}: continues {positions(it.carried)}, and the step before left {positions(it.expected)}`
  end,
  repeated_row = function(it)
    return `step {it.step}, group {it.group}: row {it.row} was drawn in epoch {it.epoch} before`
  end,
  checkpoint = function(it)
    return `the checkpoint of step {it.step}: {formats.counted(it.position, "task", "tasks")} drawn, and the files have {it.expected}`
  end,
}

local function counts(result)
  local rows = { { "", "tasks", "trajectories" } }
  for _, label in LABELS do
    local name = label[1]
    table.insert(rows, { label[2], formats.thousands(result.tasks[name]), formats.thousands(result.trajectories[name]) })
  end
  return formats.grid(rows)
end

--- The rows of each epoch, by how often they were drawn.
local function epochs(result)
  local seen, times, ordered = {}, {}, false
  for _, epoch in result.epochs do
    ordered = ordered or epoch.order ~= "epochs"
    for number in epoch.drawn do
      if not seen[number] then table.insert(times, number) end
      seen[number] = true
    end
  end
  table.sort(times, function(a, b) return tonumber(a) < tonumber(b) end)
  local rows = { { "epoch", "rows", "not drawn" } }
  for _, number in times do table.insert(rows[1], TIMES[number] or `{number} times`) end
  if ordered then table.insert(rows[1], "order") end
  for _, epoch in result.epochs do
    local drawn, cells = 0, {}
    for _, number in times do
      local count = epoch.drawn[number] or 0
      drawn += count
      table.insert(cells, formats.thousands(count))
    end
    local row = { tostring(epoch.epoch), formats.thousands(epoch.rows), formats.thousands(math.max(epoch.rows - drawn, 0)) }
    table.move(cells, 1, #cells, #row + 1, row)
    if ordered then table.insert(row, epoch.order) end
    table.insert(rows, row)
  end
  return formats.grid(rows)
end

return function(result)
  local drawn = 0
  for _, count in result.tasks do drawn += count end
  local head = `{result.run}, {range("step", result.steps[1], result.steps[2])}: {formats.counted(drawn, "task", "tasks")}`
  if result.position and result.rows and result.rows > 0 then
    local passed = string.format("%.2f", result.position / result.rows)
    head ..= ` of {formats.counted(result.rows, "row", "rows")}, {passed} epochs{if result.fork then " with its origin" else ""}`
  end
  local text = head .. "\n"
  if result.fork then text ..= `before step {result.fork.step + 1}: the run {result.fork.run}\n` end
  text ..= "\n" .. counts(result) .. "\n"
  if #result.epochs > 0 then text ..= epochs(result) .. "\n" end
  local earlier = result.earlier
  if earlier.count > 0 then
    local count = formats.counted(earlier.count, "file is", "files are")
    text ..= `{count} of an earlier version of r1, up to step {earlier.last}: positions in the data are not stored,\n`
      .. `nor dropped groups ({formats.thousands(earlier.missing_groups)} or more)\n\n`
  end
  if result.unfinished and #result.unfinished > 0 then
    text ..= `{formats.counted(#result.unfinished, "group goes", "groups go")} on in the next step\n\n`
  end
  for _, problem in result.problems do text ..= formats.paint("red", PROBLEMS[problem.problem](problem)) .. "\n" end
  if result.more_problems > 0 then text ..= `and {formats.thousands(result.more_problems)} more\n` end
  if not result.right then
    return text .. `{formats.counted(#result.problems + result.more_problems, "discrepancy", "discrepancies")}\n`
  end
  return text .. `every {if earlier.count > 0 then "stored task" else "task"} was trained once or is accounted for\n`
end
