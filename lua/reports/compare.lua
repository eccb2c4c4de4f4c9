--- The result of r1 compare: curves of runs as tables, and as a picture (SVG) with a panel for
--- each metric and a line for each run.

local formats = ...

--- Columns of a curve in the terminal.
local WIDTH = 32

--- Smallest and largest number that `of` gives for a point of the curves.
local function range(curves, of)
  local low, high = math.huge, -math.huge
  for _, curve in curves do
    for _, point in curve.values do
      low, high = math.min(low, of(point)), math.max(high, of(point))
    end
  end
  return low, high
end

local function step_of(point) return point[1] end
local function value_of(point) return point[2] end

--- The curves of a metric, by the number of their run.
local function curves_of(result, metric)
  local curves = {}
  for index, run in result.runs do curves[index] = run.metrics[metric] end
  return curves
end

local function at(point) return `{formats.compact(point.value)} at {point.step}` end

local function rows_of(result, metric)
  local curves = curves_of(result, metric.name)
  -- All runs of a metric are drawn in the same range.
  local low, high = range(curves, value_of)
  if metric.is_share then
    low, high = 0, 1
  end
  local rows = { { "run", "curve", "first", "end", "last", "lowest", "highest" } }
  for index, name in result.names do
    local curve = curves[index]
    if curve then
      local values = {}
      for _, point in curve.values do table.insert(values, point[2]) end
      local drawn = formats.sparkline(values, WIDTH, low, high)
      local first, last = formats.compact(curve.first.value), at(curve.last)
      table.insert(rows, { name, drawn, first, formats.compact(curve["end"]), last, at(curve.lowest), at(curve.highest) })
    else
      table.insert(rows, { name, "-" })
    end
  end
  return rows
end

local function text(result)
  local out = ""
  for index, name in result.names do
    local fork = result.runs[index].fork
    if fork then
      out ..= formats.paint("dim", `{name} begins after step {fork.step} of {fork.run}`) .. "\n"
    end
  end
  for _, metric in result.metrics do
    out ..= `\n{formats.paint("bold", metric.name)}\n`
    out ..= formats.grid(rows_of(result, metric))
  end
  return out
end

--- Colours with enough contrast on white and on black.
local COLOURS = { "#0969da", "#d1570c", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#0e8a8a", "#6e7781" }
local function colour_of(run) return COLOURS[(run - 1) % #COLOURS + 1] end

--- Panels per row, the size of one with its margins, and of the plot in it.
local PER_ROW = 3
local PANEL, PLOT = { width = 380, height = 260 }, { width = 300, height = 170 }
local LEFT, TOP = 60, 40

local function decimal(value) return string.format("%.1f", value) end

--- One value has no range.
local function widened(low, high)
  if low < high then return low, high end
  return low - 0.5, high + 0.5
end

local function panel(result, metric, left, top)
  local curves = curves_of(result, metric.name)
  if next(curves) == nil then return "" end
  local first, last = widened(range(curves, step_of))
  local low, high = 0, 1
  if not metric.is_share then
    low, high = widened(range(curves, value_of))
  end
  local function x(step) return decimal(left + PLOT.width * (step - first) / (last - first)) end
  local function y(value) return top + PLOT.height * (high - value) / (high - low) end

  local svg = `<text x="{left}" y="{top - 14}" font-weight="600">{formats.escaped(metric.name)}</text>\n`
  for tick = 0, 4 do
    local value = low + (high - low) * tick / 4
    local line = decimal(y(value))
    svg ..= `<line x1="{left}" x2="{left + PLOT.width}" y1="{line}" y2="{line}" stroke="#888" stroke-opacity="0.25"/>`
      .. `<text x="{left - 6}" y="{decimal(y(value) + 4)}" text-anchor="end">{formats.compact(value)}</text>\n`
  end
  local bottom = top + PLOT.height + 16
  for anchor, step in { first, last } do
    local side = if anchor == 1 then "start" else "end"
    svg ..= `<text x="{x(step)}" y="{bottom}" text-anchor="{side}">step {step}</text>\n`
  end
  for run = 1, #result.names do
    local curve = curves[run]
    if curve then
      local points = {}
      for _, point in curve.values do table.insert(points, `{x(point[1])} {decimal(y(point[2]))}`) end
      local colour = colour_of(run)
      svg ..= `<path d="M{table.concat(points, "L")}" fill="none" stroke="{colour}" stroke-width="1.6"/>\n`
      -- A line through one point is invisible.
      if #points == 1 then
        local point = curve.values[1]
        svg ..= `<circle cx="{x(point[1])}" cy="{decimal(y(point[2]))}" r="3" fill="{colour}"/>\n`
      end
    end
  end
  return svg
end

local function picture(result)
  local count, runs = #result.metrics, #result.names
  local bottom = PANEL.height * math.ceil(count / PER_ROW)
  local width, height = PANEL.width * math.clamp(count, 1, PER_ROW), bottom + 24 + 18 * runs
  local svg = `<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" `
    .. `viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="12" fill="#777">\n`
  for index, metric in result.metrics do
    local column, row = (index - 1) % PER_ROW, (index - 1) // PER_ROW
    svg ..= panel(result, metric, PANEL.width * column + LEFT, PANEL.height * row + TOP)
  end
  for index, name in result.names do
    local y = bottom + 18 * (index - 1) + 12
    svg ..= `<line x1="{LEFT}" x2="{LEFT + 24}" y1="{y}" y2="{y}" stroke="{colour_of(index)}" stroke-width="2"/>`
      .. `<text x="{LEFT + 32}" y="{y + 4}">{formats.escaped(name)}</text>\n`
  end
  return svg .. "</svg>\n"
end

return function(result) return if result.view == "picture" then picture(result) else text(result) end
