--- Word problems with a sum of two numbers, in GSM8K's columns, with a solution in steps.

local NAMES = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }
local THINGS = { "apples", "books", "cards", "eggs", "lamps", "pens", "rings", "seeds" }

local sums = {}

--- A row: `question`, `answer` (a solution that ends with `####` and the number), `reasoning` (that
--- solution) and `guess` (a number near the sum).
function sums.row()
  local a, b = math.random(11, 99), math.random(11, 99)
  local tens, units = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
  local name, thing = NAMES[math.random(#NAMES)], THINGS[math.random(#THINGS)]
  local reasoning = `{a // 10 * 10}+{b // 10 * 10}={tens}\n{a % 10}+{b % 10}={units}\n{tens}+{units}={a + b}\n#### {a + b}`
  return {
    question = `{name} has {a} {thing} and buys {b}. How many {thing} in all?`,
    answer = reasoning,
    reasoning = reasoning,
    guess = a + b + math.random(-15, 15),
  }
end

return sums
