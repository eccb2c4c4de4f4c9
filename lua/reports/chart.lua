--- Text plots with axes, and lines of blocks, for a terminal. The formats of reports have both.

local formats, unicode = ...

local GLYPHS = if unicode then { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" } else { ".", ":", "#" }

local function is_finite(value) return math.abs(value) < math.huge end

--- One value per column: the mean of neighbours, or repeated values.
local function resample(values, columns)
  local means, count = {}, #values
  if count == 0 then return means end
  for column = 0, columns - 1 do
    local start = column * count // columns
    local sum, finite = 0, 0
    for index = start + 1, math.max((column + 1) * count // columns, start + 1) do
      if is_finite(values[index]) then
        sum, finite = sum + values[index], finite + 1
      end
    end
    table.insert(means, sum / finite)
  end
  return means
end

--- Smallest and largest finite value.
local function range(values)
  local low, high = math.huge, -math.huge
  for _, value in values do
    if is_finite(value) then
      low, high = math.min(low, value), math.max(high, value)
    end
  end
  if low > high then return 0, 0 end
  return low, high
end

--- Level of a value, from 1 at `low` to `levels` at `high`; nil if it is not finite. With equal
--- bounds the level is the middle.
local function level(value, low, high, levels)
  if not is_finite(value) then return nil end
  local share = if high > low then math.clamp((value - low) / (high - low), 0, 1) else 0.5
  return 1 + math.round(share * (levels - 1))
end

local function aligned(text, width) return string.rep(" ", width - #text) .. text end

local charts = {}

--- One value per step, with the value range on the left and the steps below.
function charts.plot(it)
  local width, height = math.max(it.size[1], 1), math.max(it.size[2], 1)
  local columns = resample(it.values, width)
  local low, high
  if it.bounds then
    low, high = unpack(it.bounds)
  else
    low, high = range(columns)
  end
  local side, corner = "|", "+"
  if unicode then
    side, corner = "│", "└"
  end
  local top, bottom = formats.compact(high), formats.compact(low)
  local margin = math.max(#top, #bottom)
  local lines = { it.title }
  for row = height - 1, 0, -1 do
    local cells = ""
    for _, value in columns do
      local filled = (level(value, low, high, height * #GLYPHS) or 0) - row * #GLYPHS
      cells ..= GLYPHS[math.min(filled, #GLYPHS)] or " "
    end
    local label = if row + 1 == height then top elseif row == 0 then bottom else ""
    table.insert(lines, `{aligned(label, margin)} {side}{string.gsub(cells, " +$", "")}`)
  end
  local first, last = `step {it.first}`, `step {math.max(it.first + #it.values - 1, 0)}`
  local gap = string.rep(" ", math.max(width - #first - #last, 1))
  table.insert(lines, `{aligned("", margin)} {corner}{first}{gap}{last}`)
  return table.concat(lines, "\n")
end

--- Rows as aligned lines, of which the first has the titles.
function charts.grid(rows)
  local text = ""
  for index, line in formats.columns(rows) do
    text ..= (if index == 1 then formats.paint("dim", line) else line) .. "\n"
  end
  return text
end

--- One line of blocks for values within bounds, at most `width` columns.
function charts.sparkline(values, width, low, high)
  local drawn = ""
  for _, value in resample(values, math.min(width, #values)) do
    drawn ..= GLYPHS[level(value, low, high, #GLYPHS)] or " "
  end
  return drawn
end

return charts
