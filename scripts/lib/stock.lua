--- Small tables with questions for scripts/tablemind.lua: what some people sold, one number per
--- week. The columns are numbers after a letter (`w47`): a small model copies these, and guesses a
--- column from a short list of words instead of copying it.

local NAMES = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }

-- Some of a list, in random order.
local function some(list, count)
  local left, chosen = table.clone(list), {}
  for place = 1, count do chosen[place] = table.remove(left, math.random(#left)) end
  return chosen
end

-- The rows with the most and the least of a column.
local function extremes(made)
  local most, least = made.rows[1], made.rows[1]
  for _, row in ipairs(made.rows) do
    if row[made.column] > most[made.column] then most = row end
    if row[made.column] < least[made.column] then least = row end
  end
  return most, least
end

-- Each shape: question, plan, query, a query that gives another value, and the answer. Wrong
-- queries are wrong in their form, not in the column: a small model learns to copy the column only
-- if the demonstrations always do.
local shapes = {
  function(made)
    local row, most, least = made.rows[math.random(#made.rows)], extremes(made)
    local other = if row == most then "min" else "max"
    return `How many has {row[1]} in {made.week}?`, `{made.week} of {row[1]}`,
      `SELECT {made.week} FROM t WHERE name = '{row[1]}'`, `SELECT {other}({made.week}) FROM t`,
      row[made.column], (if row == most then least else most)[made.column]
  end,
  function(made)
    local most, least = extremes(made)
    return `Who has the most in {made.week}?`, `most in {made.week}`,
      `SELECT name FROM t ORDER BY {made.week} DESC LIMIT 1`, `SELECT name FROM t ORDER BY {made.week} LIMIT 1`,
      most[1], least[1]
  end,
  function(made)
    local sum = 0
    for _, row in ipairs(made.rows) do sum += row[made.column] end
    return `How many in all in {made.week}?`, `sum of {made.week}`,
      `SELECT sum({made.week}) FROM t`, `SELECT count({made.week}) FROM t`, sum, #made.rows
  end,
}

local stock = {}

--- A table with a question, `answers`, and in `solution` the plan, the query and a wrong query with
--- their results.
function stock.row()
  local names, rows, weeks = some(NAMES, math.random(5, 7)), {}, {}
  for week = 10, 52 do weeks[#weeks + 1] = `w{week}` end
  weeks = some(weeks, 3)
  for place, name in ipairs(names) do rows[place] = { name } end
  -- Small numbers, so that a sum has two digits.
  for column = 2, 4 do
    for place, number in ipairs(some({ 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }, #names)) do rows[place][column] = number end
  end
  local column = math.random(2, 4)
  local made = { rows = rows, column = column, week = weeks[column - 1] }
  local question, plan, query, bad_query, answer, bad = shapes[math.random(#shapes)](made)
  return {
    question = question,
    table = { header = { "name", weeks[1], weeks[2], weeks[3] }, rows = rows },
    answers = { tostring(answer) },
    solution = { plan = plan, query = query, bad_query = bad_query, result = tostring(answer), bad_result = tostring(bad) },
  }
end

return stock
