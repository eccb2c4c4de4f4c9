--- The result of r1 traj diff: the fields that differ and the first token that differs. The lines
--- of the conversations follow.

local formats = ...

local function shown(value)
  if value == nil then return "-" end
  if type(value) == "table" then return "(data)" end
  if type(value) == "number" then return formats.plain(value) end
  return formats.first(formats.lines(tostring(value))[1] or "", 60)
end

return function(result)
  local names = {}
  for name in result.fields do table.insert(names, name) end
  table.sort(names)
  local rows = { { "", result.first, result.second } }
  for _, name in names do
    local pair = result.fields[name]
    table.insert(rows, { name, shown(pair[1]), shown(pair[2]) })
  end
  local text = if #names > 0
    then formats.grid(rows)
    else `{result.first} and {result.second} have equal values in every field\n`
  local first = result.first_token
  if first == nil then return text .. "\nevery prompt and every reply has the same tokens\n" end
  if first.part == nil then return text .. `\nthe same tokens up to step {first.step}, which only one of them has\n\n` end
  return text .. `\nthe first difference is in step {first.step}, {first.part}, token {first.token}\n\n`
end
