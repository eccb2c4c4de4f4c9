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

--- The tool `convert`, which the server lists from the same file.
local tool = r1.resource("lib/units.json")[1]
units.schema = {
  type = "function",
  ["function"] = { name = tool.name, description = tool.description, parameters = tool.inputSchema },
}

return units
