--- The result of r1 data stats: a paragraph for each column.

local formats = ...

--- Columns of a histogram.
local WIDTH = 40

local function figure(value)
  return if value % 1 == 0 and math.abs(value) < 1e15 then formats.thousands(value) else formats.compact(value)
end

local function distribution(unit, it)
  local figures = {}
  for _, name in { "least", "mean", "median", "p95", "most" } do
    table.insert(figures, `{if name == "p95" then "95%" else name} {figure(it[name])}`)
  end
  local text = string.format("  %-11s %s\n", unit, table.concat(figures, ", "))
  if #it.histogram > 1 then
    local drawn = formats.sparkline(it.histogram, WIDTH, 0, math.max(1, unpack(it.histogram)))
    text ..= string.format("  %-11s %s %s %s\n", "", figure(it.least), drawn, figure(it.most))
  end
  return text
end

local function types_of(column)
  local names = {}
  for name in column.types do table.insert(names, name) end
  if #names == 0 then return "no values" end
  table.sort(names)
  if #names == 1 then return names[1] end
  for index, name in names do names[index] = `{name} {column.types[name]}` end
  return table.concat(names, ", ")
end

local function paragraph(column)
  local text = `\n{column.name}  {types_of(column)}`
  if column.missing > 0 then text ..= `, {formats.thousands(column.missing)} missing` end
  text ..= `, {formats.counted(column.distinct, "value", "different values")}\n`
  for _, unit in { "characters", "tokens", "numbers", "items" } do
    if column[unit] then text ..= distribution(unit, column[unit]) end
  end
  if column.values then
    local values = {}
    for _, value in column.values do table.insert(values, `{value[1]} {formats.thousands(value[2])}`) end
    text ..= `  values      {table.concat(values, ", ")}\n`
  end
  return text
end

return function(result)
  local text = formats.counted(result.rows, "row", "rows")
  if result.repeated_rows > 0 then
    text ..= `, {formats.thousands(result.repeated_rows)} equal to an earlier one`
  end
  text ..= "\n"
  for _, column in result.columns do text ..= paragraph(column) end
  return text
end
