--- Small tables with questions for scripts/tablemind.lua: what some people have, one number per
--- thing. The words are those that r1-nano has seen.

local NAMES = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }
local THINGS = { "books", "cards", "eggs", "lamps", "pens", "rings", "seeds" }

-- Some of a list, in random order.
local function some(list, count)
  local left, chosen = table.clone(list), {}
  for place = 1, count do chosen[place] = table.remove(left, math.random(#left)) end
  return chosen
end

-- Each shape: question, plan, query, a query that gives another value, and the answer.
local shapes = {
  function(made)
    local row = made.rows[math.random(#made.rows)]
    return `How many {made.thing} has {row[1]}?`, `{made.thing} of {row[1]}`,
      `SELECT {made.thing} FROM t WHERE name = '{row[1]}'`, `SELECT {made.other} FROM t WHERE name = '{row[1]}'`,
      row[made.column], row[made.wrong]
  end,
  function(made)
    local most, least = made.rows[1], made.rows[1]
    for _, row in ipairs(made.rows) do
      if row[made.column] > most[made.column] then most = row end
      if row[made.column] < least[made.column] then least = row end
    end
    return `Who has the most {made.thing}?`, `most {made.thing}`,
      `SELECT name FROM t ORDER BY {made.thing} DESC LIMIT 1`, `SELECT name FROM t ORDER BY {made.thing} LIMIT 1`,
      most[1], least[1]
  end,
  function(made)
    local sum = 0
    for _, row in ipairs(made.rows) do sum += row[made.column] end
    return `How many {made.thing} in all?`, `sum of {made.thing}`,
      `SELECT sum({made.thing}) FROM t`, `SELECT count({made.thing}) FROM t`, sum, #made.rows
  end,
}

local stock = {}

--- A table with a question, `answers`, and in `solution` the plan, the query and a wrong query with
--- their results.
function stock.row()
  local things, names = some(THINGS, 3), some(NAMES, math.random(5, 7))
  local rows = {}
  local numbers = {}
  for number = 10, 98 do numbers[#numbers + 1] = number end
  for place, name in ipairs(names) do
    rows[place] = { name }
    for column = 2, 4 do rows[place][column] = table.remove(numbers, math.random(#numbers)) end
  end
  local column = math.random(2, 4)
  local wrong = column % 3 + 2
  local made = { rows = rows, column = column, wrong = wrong, thing = things[column - 1], other = things[wrong - 1] }
  local question, plan, query, bad_query, answer, bad = shapes[math.random(#shapes)](made)
  return {
    question = question,
    table = { header = { "name", things[1], things[2], things[3] }, rows = rows },
    answers = { tostring(answer) },
    solution = { plan = plan, query = query, bad_query = bad_query, result = tostring(answer), bad_result = tostring(bad) },
  }
end

return stock
