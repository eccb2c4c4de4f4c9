--- The report of `r1 eval` as tables and notes. A report has `recipe`, `n`, `temperature`,
--- `policies` and `comparisons` as report.json has them, and the names of metrics, failures and
--- limits in the order in which they are shown.

-- Maximum number of values of a column in the tables of the terminal; files have all.
local SLICES = 20

local functions = {}

-- Three decimals for shares, one for counts. A small negative number is not -0.000.
local function number(value)
  if value ~= value then return "NaN" end
  local text = string.format(if math.abs(value) < 10 then "%.3f" else "%.1f", value)
  return if text:find("[1-9]") then text else (text:gsub("^%-", ""))
end

local function estimate(figure)
  if not figure then return "" end
  return `{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]`
end

local function difference(figure)
  if not figure then return "" end
  local sign = if figure.value > 0 then "+" else ""
  local p = if figure.p < 0.001 then "p < 0.001" else string.format("p = %.3f", figure.p)
  return `{sign}{estimate(figure)} {p}`
end

local function counted(count, noun) return `{count} {noun}{if count == 1 then "" else "s"}` end

local function title(report)
  local tasks = 0
  for _, policy in ipairs(report.policies) do tasks = math.max(tasks, policy.tasks) end
  return `{report.recipe}: {counted(tasks, "task")}, {counted(report.n, "sample")} each, temperature `
    .. `{report.temperature}; means over tasks with intervals of 95 %`
end

-- The address and the name of a model behind a server, which may be `URL#NAME`.
local function address(model) return model:match("^(.*://.*)#([^#]*)$") end

-- Names of models as headings: the last part of a path, unless two are equal.
local function headings(report)
  local names, counts = {}, {}
  for i, policy in ipairs(report.policies) do
    local model = policy.model:gsub("/+$", "")
    local _, served = address(model)
    names[i] = (served or model):match("([^/]*)$")
    counts[names[i]] = (counts[names[i]] or 0) + 1
  end
  for i, policy in ipairs(report.policies) do
    if counts[names[i]] > 1 then
      local url, served = address(policy.model)
      names[i] = if url then `{served} at {url:match("://([^/]*)")}` else policy.model
    end
  end
  return names
end

-- A row of a table: its first cells, and a cell for each policy.
local function row(first, cells)
  local all = table.clone(first)
  for _, cell in ipairs(cells) do table.insert(all, cell) end
  return all
end

-- The terminal shows the figures at k = n, and every pass@k.
local function is_shown(name, n)
  local figure, k = name:match("^([^@]*)@(.*)$")
  if not figure or figure == "pass" then return true end
  return k == tostring(n) and (figure == "mean" or n > 1)
end

local function metrics(report, all)
  local models = headings(report)
  local heading = row({ "metric" }, models)
  for i = 2, #models do
    table.insert(heading, if #report.comparisons == 1 then "difference" else `{models[i]} - {models[1]}`)
  end
  local rows = { heading }
  for _, name in ipairs(report.metrics) do
    if all or is_shown(name, report.n) then
      local cells = {}
      for _, policy in ipairs(report.policies) do table.insert(cells, estimate(policy.metrics[name])) end
      for _, comparison in ipairs(report.comparisons) do table.insert(cells, difference(comparison.metrics[name])) end
      table.insert(rows, row({ name }, cells))
    end
  end
  return rows
end

-- The keys of several tables, sorted, each once.
local function keys(tables)
  local seen, list = {}, {}
  for _, one in ipairs(tables) do
    for key in pairs(one) do
      if not seen[key] then table.insert(list, key) end
      seen[key] = true
    end
  end
  table.sort(list)
  return list
end

-- The mean for each value of a column.
local function slices(report, column, limit)
  local all = {}
  for i, policy in ipairs(report.policies) do all[i] = policy.slices[column] or {} end
  local rows, values = { row({ column, "tasks" }, headings(report)) }, keys(all)
  for i = 1, math.min(#values, limit) do
    local tasks, cells = 0, {}
    for _, slice in ipairs(all) do
      local figures = slice[values[i]]
      tasks = math.max(tasks, if figures then figures.tasks else 0)
      table.insert(cells, estimate(figures and figures.metrics[`mean@{report.n}`]))
    end
    table.insert(rows, row({ values[i], tostring(tasks) }, cells))
  end
  if #values > limit then table.insert(rows, { `… {#values - limit} more` }) end
  return rows
end

-- Numbers of trajectories that failed, by status, and that were truncated, by limit.
local function failures(report)
  local rows = { row({ "status" }, headings(report)) }
  local function add(label, field, name)
    local cells, is_any = {}, false
    for i, policy in ipairs(report.policies) do
      cells[i] = tostring(policy[field][name] or 0)
      is_any = is_any or policy[field][name] ~= nil
    end
    if is_any then table.insert(rows, row({ label }, cells)) end
  end
  for _, status in ipairs(report.statuses) do add(status, "failures", status) end
  for _, limit in ipairs(report.limits) do add(`truncated: {limit}`, "truncated", limit) end
  return rows
end

-- The tables of a report with their titles: metrics, slices, failures. `all`: every metric and
-- value, not only the most important ones. The first row of a table is its heading.
function functions.tables(report)
  local columns = {}
  for i, policy in ipairs(report.policies) do columns[i] = policy.slices end
  local tables = { { title(report), metrics(report, report.all) } }
  for _, column in ipairs(keys(columns)) do
    local rows = slices(report, column, if report.all then math.huge else SLICES)
    if #rows > 1 then table.insert(tables, { `mean@{report.n} by {column}`, rows }) end
  end
  local failed = failures(report)
  if #failed > 1 then table.insert(tables, { "Trajectories that failed or were truncated", failed }) end
  return tables
end

-- Notes on missing samples.
function functions.missing(report)
  local notes = {}
  for _, policy in ipairs(report.policies) do
    local missing, all = policy.missing, policy.samples + policy.missing
    local mean = policy.metrics[`mean@{report.n}`] or policy.metrics["mean@1"]
    if missing > 0 then
      local sum = mean and mean.value * policy.samples
      local bounds = sum
        and `; with all of them wrong the mean would be about {number(sum / all)}, with all right {number((sum + missing) / all)}`
      table.insert(
        notes,
        `{policy.model}: {missing} of {all} samples are missing, and the figures are those of the others{bounds or ""}`
      )
    end
  end
  return notes
end

-- Notes on comparisons whose sampling could stop early.
function functions.sequential(report)
  local notes = {}
  for _, comparison in ipairs(report.comparisons) do
    local test = comparison.sequential
    if test then
      local ended = if test.stopped
        then "; sampling stopped there, so other p-values and intervals are too narrow"
        else ""
      table.insert(
        notes,
        `{comparison.model} against {comparison.baseline}: p = {string.format("%.4f", test.p)} after {test.tasks} tasks, `
          .. `valid at any number of tasks (level {test.level}){ended}`
      )
    end
  end
  return notes
end

-- Whether a metric is a number of things, a time or a price, which may be below 1 too.
local function is_count(name)
  return table.find({ "steps", "tool_calls", "seconds", "tool_seconds", "cost" }, (name:match("^[^.]*"))) ~= nil
end

-- A drawing of the metrics of the first policy that are from 0 to 1: their names, each with the
-- horizontal positions of the estimates of the policies, and their texts.
function functions.drawing(report)
  local function x(value) return 140 + 560 * math.clamp(value, 0, 1) end
  local rows = {}
  for _, name in ipairs(report.metrics) do
    local first = report.policies[1].metrics[name]
    if first and first.low >= 0 and first.high <= 1 and not is_count(name) then
      local marks = {}
      for i, policy in ipairs(report.policies) do
        local figure = policy.metrics[name]
        if figure then
          local text = `{policy.model} {name} {estimate(figure)}`
          local mark = { policy = i - 1, value = x(figure.value), low = x(figure.low), high = x(figure.high), text = text }
          table.insert(marks, mark)
        end
      end
      table.insert(rows, { name = name, marks = marks })
    end
  end
  return rows
end

-- The report as Markdown, with every metric.
function functions.markdown(report)
  local lines = { "# Evaluation" }
  local function add(line) table.insert(lines, line) end
  for _, one in ipairs(functions.tables(report)) do
    add(`\n{one[1]}\n`)
    local width = #one[2][1]
    for i, cells in ipairs(one[2]) do
      local escaped = {}
      for at = 1, width do escaped[at] = (cells[at] or ""):gsub("|", "\\|") end
      add(`| {table.concat(escaped, " | ")} |`)
      if i == 1 then add("|" .. string.rep("---|", width)) end
    end
  end
  for _, note in ipairs(functions.missing(report)) do add(`\n{note}.`) end
  for _, note in ipairs(functions.sequential(report)) do add(`\n{note}.`) end
  return table.concat(lines, "\n") .. "\n"
end

return functions
