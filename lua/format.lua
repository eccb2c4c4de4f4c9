-- Checks what `parse` of a format returns: a list of calls, or nil and what is wrong with the only
-- one. A result that is refused gives nil and the reason.

local kind, _, suggest = ... -- host

local WANTED = "it must return a list of calls { name =, arguments = } or { error = }"
local FIELDS = { "name", "arguments", "id", "error" }

-- Why a call is refused; nil for a valid one.
local function refusal(at, call)
  if type(call) ~= "table" then
    return at .. " = " .. kind(call) .. "; a call is { name =, arguments = } or { error = }"
  end
  for name in next, call do
    local text = tostring(name)
    if not table.find(FIELDS, text) then return at .. " with the unknown field `" .. text .. "`; " .. suggest(text, FIELDS) end
  end
  local function wrong(name)
    local value = rawget(call, name)
    if value == nil or (type(value) == "string" and value ~= "") then return nil end
    return at .. "." .. name .. " = " .. kind(value) .. "; it must be a text that is not empty"
  end
  local why = wrong("name") or wrong("error")
  if why then return why end
  local name, error = rawget(call, "name"), rawget(call, "error")
  if name and error then return at .. " with both `name` and `error`" end
  if not name and not error then return at .. " without `name`" end
  return name and wrong("id")
end

return function(parse, text, tools)
  local calls, why = parse(text, tools)
  if calls == nil and type(why) == "string" then return { { error = why } } end
  if calls == nil and why ~= nil then
    return nil, "nil and " .. kind(why) .. "; the second value must be an error message"
  end
  if calls == nil then return {} end
  if type(calls) ~= "table" then return nil, kind(calls) .. "; " .. WANTED end
  local count = 0
  for key in next, calls do
    if type(key) == "number" then
      count += 1
    elseif table.find(FIELDS, key) then
      return nil, "a call instead of a list of calls: " .. WANTED
    else
      return nil, "a list with the field `" .. tostring(key) .. "`; " .. WANTED
    end
  end
  if count ~= rawlen(calls) then return nil, "a list with gaps; " .. WANTED end
  for index = 1, count do
    local why = refusal("calls[" .. index .. "]", rawget(calls, index))
    if why then return nil, why end
  end
  return calls
end
