--- Conversions of units for scripts/mcp.lua, and the tool of scripts/lib/units_server.py.

local UNITS = { { "miles", "kilometres", 1.609344 }, { "pounds", "kilograms", 0.45359237 }, { "gallons", "litres", 3.785411784 } }

local units = {}

--- A row: the question, the answer to two decimals, and the arguments of the call that gives it.
function units.row()
  local unit, amount = UNITS[math.random(#UNITS)], math.random(12, 98)
  return {
    question = `How many {unit[2]} are {amount} {unit[1]}? Round to two decimals.`,
    answer = math.floor(amount * unit[3] * 100 + 0.5) / 100,
    amount = amount, from = unit[1], to = unit[2],
  }
end

-- JSON, because a table has no order, and a prompt has the fields in the order of the server.
local lines = {}
for _, line in r1.resource { path = "lib/units.json", format = "text" } do r1.push(lines, line.text) end
local tool = string.match(table.concat(lines, " "), "^%[(.*)%]%s*$")

--- The tools of the server, which lists those of the same file, as JSON for rows of a cold start.
units.tools = `[\{"type": "function", "function": {string.gsub(tool, '"inputSchema"', '"parameters"')}}]`

return units
