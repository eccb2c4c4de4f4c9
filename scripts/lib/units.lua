--- Conversions of units for scripts/mcp.lua, and the tool of scripts/lib/units_server.py.

local UNITS = {
  { "minutes", "seconds", 60 }, { "hours", "minutes", 60 }, { "days", "hours", 24 },
  { "weeks", "days", 7 }, { "feet", "inches", 12 }, { "yards", "feet", 3 },
}

local units = {}

--- A row: the question, the answer, and the arguments of the call that gives it.
function units.row()
  local unit, amount = UNITS[math.random(#UNITS)], math.random(12, 98)
  return {
    question = `How many {unit[2]} are {amount} {unit[1]}?`,
    answer = amount * unit[3],
    amount = amount, from = unit[1], to = unit[2],
  }
end

--- Schemas of the tools of the server, which reads the same file.
units.tools = {}
for place, tool in r1.resource "lib/units.json" do
  local described = { name = tool.name, description = tool.description, parameters = tool.inputSchema }
  units.tools[place] = { type = "function", ["function"] = described }
end

return units
