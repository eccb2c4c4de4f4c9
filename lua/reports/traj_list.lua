--- The result of r1 traj ls, where and top: trajectories as rows.

local formats = ...

--- Characters of a text in a cell.
local WIDTH = 60

local HEADINGS = { tool_calls = "calls" }
local COLOURS = { terminated = "green", truncated = "yellow" }

local function signed(number) return if number < 0 then formats.compact(number) else "+" .. formats.compact(number) end

local FORMATS = {
  reward = formats.signed,
  outcome_reward = formats.signed,
  advantage = signed,
  value = signed,
  seconds = formats.duration,
  status = function(status) return formats.paint(COLOURS[status] or "red", status) end,
}

local function cell(name, value)
  if value == nil then return "-" end
  local format = FORMATS[name]
  if format then return format(value) end
  if type(value) == "number" then return if value % 1 == 0 then formats.plain(value) else formats.compact(value) end
  local line = formats.lines(value)[1] or ""
  local short = formats.first(line, WIDTH)
  return if short == line then line else short .. "…"
end

local function footer(result)
  local counts = result.counts
  local first, last = result.steps[1], result.steps[2]
  local steps = if first == last then `step {first}` else `steps {first} to {last}`
  local total = counts.total and formats.counted(counts.total, "trajectory", "trajectories")
  if counts.matching then
    local shown = if counts.shown < counts.matching then `; the first {counts.shown} are shown, -n sets how many` else ""
    return `{formats.thousands(counts.matching)} of {total} in {steps} of {result.run}{shown}`
  end
  if total then return `{formats.thousands(counts.shown)} of {total} in {steps} of {result.run}` end
  local shown = formats.counted(counts.shown, "trajectory", "trajectories")
  return `the last {shown} of {result.run}, which has {steps}; -n 0 lists all`
end

return function(result)
  local rows = { {} }
  for _, name in result.columns do table.insert(rows[1], HEADINGS[name] or name) end
  for _, row in result.rows do
    local cells = {}
    for _, name in result.columns do table.insert(cells, cell(name, row[name])) end
    table.insert(rows, cells)
  end
  local text = if #result.rows > 0 then formats.grid(rows) .. "\n" else ""
  return if result.quiet then text else text .. footer(result) .. "\n"
end
