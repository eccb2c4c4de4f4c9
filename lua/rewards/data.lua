--- Rewards for structured answers: JSON, tables and lists of values.
---
--- Sources: denotation accuracy of WikiTableQuestions (Pasupat and Liang, arXiv:1508.00305); result
--- sets of text-to-SQL evaluations (Spider, arXiv:1809.08887).

local check = require("@r1/options")
local compare = require("@r1/rewards/compare")

local data = {}

local near, number = compare.near, compare.number

local function equal_values(a, b, tolerance, depth)
  if depth > 100 then return false end
  if type(a) == "number" and type(b) == "number" then return near(a, b, tolerance) end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do
    if b[key] == nil or not equal_values(value, b[key], tolerance, depth + 1) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

--- Whether two decoded JSON values are equal: order of keys does not matter, order of lists does. A
--- field that is null equals one that is missing. `tolerance` is relative (default 0).
function data.equal_values(a, b, tolerance)
  return equal_values(a, b, tolerance or 0, 0)
end

--- 1 if two JSON values are equal: order of keys and spaces do not matter, order of lists does.
---
--- `prediction` is JSON text, or a decoded value; a text that is not JSON has 0.
--- `options.tolerance` is the relative tolerance of numbers (0). A field that is null equals one
--- that is missing.
---
--- Gamed by: nothing known; a text around the JSON has 0, so extract it first.
function data.json_equal(prediction, reference, options)
  local tolerance = check("json_equal", options, { "tolerance" }).tolerance or 0
  local function value(from)
    if type(from) ~= "string" then return from end
    return (r1.json.decode(from))
  end
  r1.reference(reference, "json_equal", { empty = type(reference) == "table" })
  local a, b = value(prediction), value(reference)
  if b == nil then error("json_equal: the reference is not JSON: " .. r1.clip(reference, 80), 2) end
  if a == nil then return 0 end
  return equal_values(a, b, tolerance, 0) and 1 or 0
end

-- A cell for comparison: a number if it reads as one, otherwise text in lower case.
local function cell(value)
  local as_number = number(value)
  if as_number then return as_number end
  if type(value) == "string" then return r1.text.lower((string.gsub(value, "^%s*(.-)%s*$", "%1"))) end
  return value
end

-- A row that is false equals no row.
local function rows_equal(a, b, tolerance)
  if not a or not b or #a ~= #b then return false end
  for place, value in ipairs(a) do
    local other = b[place]
    local same = value == other
    if not same and type(value) == "number" and type(other) == "number" then same = near(value, other, tolerance) end
    if not same then return false end
  end
  return true
end

-- The cells of each row; false for a row with names (a JSON object), whose order is not known.
local function normal(rows, name)
  if type(rows) ~= "table" then error(name .. ": takes a list of rows, got a " .. type(rows), 3) end
  local result = {}
  for place, row in ipairs(rows) do
    local cells = {}
    for column, value in pairs(type(row) == "table" and row or { row }) do
      if type(column) ~= "number" then
        cells = false
        break
      end
      cells[column] = cell(value)
    end
    result[place] = cells
  end
  return result
end

-- The same of a reference, whose rows must be lists.
local function wanted(rows, name)
  local result = normal(rows, name)
  local place = table.find(result, false)
  if place then error(`{name}: row {place} of the reference has names; a row is a list of cells`, 3) end
  return result
end

-- The number of rows of `a` that have a partner in `b`, each of which is used once.
local function matched(a, b, tolerance, ordered)
  local used, count = {}, 0
  for place, row in ipairs(a) do
    if ordered then
      if b[place] and rows_equal(row, b[place], tolerance) then count += 1 end
    else
      for other, candidate in ipairs(b) do
        if not used[other] and rows_equal(row, candidate, tolerance) then
          used[other], count = true, count + 1
          break
        end
      end
    end
  end
  return count
end

--- 1 if two tables have the same rows, as multisets.
---
--- A table is a list of rows, a row a list of cells. Cells that read as numbers are compared with a
--- relative tolerance of 1e-6, whole numbers exactly; `options.tolerance` is another one, also for
--- whole numbers. Other cells are compared without case and outer spaces. `options.ordered`: the
--- order of rows counts. Columns are compared in order. A row of the reference that is an object is
--- an error, and one of the prediction equals no row.
---
--- Gamed by: nothing known at the default tolerance; a large tolerance accepts wrong rows.
function data.table_match(prediction, reference, options)
  options = check("table_match", options, { "tolerance", "ordered" })
  r1.reference(reference, "table_match", { empty = true })
  if prediction == nil then return 0 end
  local a, b = normal(prediction, "table_match"), wanted(reference, "table_match")
  return #a == #b and matched(a, b, options.tolerance, options.ordered) == #a and 1 or 0
end

--- F1 of the rows of two tables: partial credit for `table_match`.
---
--- Gamed by: tables that list every possible row have recall 1 and a small precision.
function data.table_f1(prediction, reference, options)
  options = check("table_f1", options, { "tolerance", "ordered" })
  r1.reference(reference, "table_f1", { empty = true })
  if prediction == nil then return 0 end
  local a, b = normal(prediction, "table_f1"), wanted(reference, "table_f1")
  if #a == 0 and #b == 0 then return 1 end
  local common = matched(a, b, options.tolerance, options.ordered)
  return 2 * common / (#a + #b)
end

--- WikiTableQuestions' denotation accuracy: 1 if two lists have the same values as sets.
---
--- Values are compared as numbers (absolute tolerance 1e-6) where both read as numbers, otherwise
--- as text without case, quotes, outer punctuation and footnote marks.
---
--- Gamed by: nothing known; additional values make the sets differ.
function data.denotation(prediction, reference)
  r1.reference(reference, "denotation")
  if prediction == nil then return 0 end
  local function value(from)
    local as_number = number(from)
    if as_number then return as_number end
    local text = r1.re.replace(tostring(from), "[‘’´`]", "'")
    text = r1.re.replace(text, "[“”]", "\"")
    text = r1.re.replace(text, "[‐‑‒–—−]", "-")
    local before
    repeat
      before = text
      text = r1.re.replace(text, "(?s)(?:\\[[^\\]]*\\]|[•♦†‡*#+])+$", "")
      text = r1.re.replace(text, "(?s)(.)\\s*\\([^)]*\\)\\s*$", "$1")
      text = r1.re.replace(text, "(?s)^\"([^\"]*)\"$", "$1")
      text = r1.re.replace(text, "^[\\s\\x1c-\\x1f]+|[\\s\\x1c-\\x1f]+$", "")
    until text == before
    text = r1.re.replace(text, "\\.$", "")
    return r1.text.lower((r1.re.replace(text, "[\\s\\x1c-\\x1f]+", " ")))
  end
  local function set(list)
    local values = {}
    for _, item in ipairs(type(list) == "table" and list or { list }) do
      local own = value(item)
      local known = false
      for _, other in ipairs(values) do
        known = known or own == other
      end
      if not known then values[#values + 1] = own end
    end
    return values
  end
  local a, b = set(prediction), set(reference)
  if #a ~= #b then return 0 end
  for _, own in ipairs(a) do
    local found = false
    for _, other in ipairs(b) do
      found = found or own == other or (type(own) == "number" and type(other) == "number" and math.abs(own - other) < 1e-6)
    end
    if not found then return 0 end
  end
  return 1
end

return data
