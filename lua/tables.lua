--- Tables of dataset rows: `require("@r1/tables")`. r1.tools.table runs SQL over them
--- (docs/guide/tables.md).

local tables = {}

--- The table in the column `table` of a row, as `{ header =, rows = }`.
function tables.of(row)
  local found = row.table
  if type(found) ~= "table" or type(found.header) ~= "table" or type(found.rows) ~= "table" then
    error("tables.of: the row has no column `table` with `header` and `rows`", 2)
  end
  return found
end

local function line(cells)
  local texts = {}
  for place, cell in ipairs(cells) do texts[place] = (string.gsub(tostring(cell), "[%s|]+", " ")) end
  return table.concat(texts, "|")
end

--- The header and the first `limit` rows, a line each, cells separated by `|`.
function tables.text(found, limit)
  local lines = { line(found.header) }
  for place = 1, math.min(limit, #found.rows) do lines[place + 1] = line(found.rows[place]) end
  local left = #found.rows - limit
  if left > 0 then lines[#lines + 1] = `… {left} more` end
  return table.concat(lines, "\n")
end

return tables
