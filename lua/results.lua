-- Reads the results of functions of a script: of `step`, of a flow, of `reward`. A result that is
-- refused gives nil, the reason, and the field that it is about ("" for the whole result).

local show, kind, _, suggest = ... -- host

-- Maximum number of parts of a reward, and bytes of a part's name: each part is a metric of the
-- run.
local FIELDS, NAME = 64, 64

-- value - value is not 0 for infinity and NaN.
local function is_finite(value) return type(value) == "number" and value - value == 0 end

-- The refusal of a value that is not a finite number; `at` names it.
local function not_finite(field, at, value)
  local what = type(value) == "number" and show(value) or kind(value) .. "; it must be a number"
  if type(value) == "boolean" then what ..= ": write `x and 1 or 0`" end
  return nil, at .. " is " .. what, field
end

-- The names of a table's fields, sorted, so that sums do not depend on the order of a table.
local function names(fields)
  local sorted = {}
  for name in next, fields do
    if type(name) ~= "string" then return nil, "a field has a name, got the key " .. show(name), "" end
    if #sorted == FIELDS then return nil, "there are more than " .. FIELDS .. " named fields or parts", "" end
    if #name > NAME then return nil, "the name of a field is longer than " .. NAME .. " bytes: " .. show(name), "" end
    sorted[#sorted + 1] = name
  end
  table.sort(sorted)
  return sorted
end

-- The field `parts` of a step.
local function parts(of, given)
  if type(given) ~= "table" then return nil, of .. ": parts is " .. kind(given) .. "; it must be a table of numbers", "parts" end
  local sorted, why, field = names(given)
  if sorted == nil then return nil, why, field end
  local read = {}
  for _, name in sorted do
    local value = rawget(given, name)
    if not is_finite(value) then return not_finite("parts." .. name, of .. ": part `" .. name .. "`", value) end
    read[name] = value
  end
  return read
end

-- A field of a step's result.
local function field_of_step(of, field, given)
  if field == "reward" then
    if is_finite(given) then return given end
    return not_finite(field, of .. ": reward", given)
  end
  if field == "parts" then return parts(of, given) end
  if field ~= "done" and field ~= "truncated" then
    local help = suggest(field, { "reward", "done", "truncated", "parts" })
    return nil, of .. " returned the unknown field `" .. field .. "` (" .. help .. ")", field
  end
  if type(given) == "boolean" then return given end
  return nil, of .. ": " .. field .. " is " .. kind(given) .. "; it must be true or false", field
end

-- The result of `step`, or a table that a flow returns.
local function step(of, value)
  if type(value) ~= "table" then
    return nil, of .. " returned " .. kind(value) .. "; it must return { reward = …, done = … }", ""
  end
  local sorted, why, field = names(value)
  if sorted == nil then return nil, why, field end
  local result = { reward = 0, done = false, truncated = false, parts = {} }
  for _, name in sorted do
    local read, why, field = field_of_step(of, name, rawget(value, name))
    if read == nil then return nil, why, field end
    result[name] = read
  end
  return result
end

local function named(name) return "reward part `" .. name .. "`" end

-- A part of a reward: its value and its weight.
local function part_of_reward(name, given)
  if is_finite(given) then return given, 1 end
  if type(given) ~= "table" then return not_finite(name, named(name), given) end
  for key in next, given do
    if key == "value" or key == "weight" then continue end
    local sorted, why, field = names(given)
    if sorted == nil then return nil, why, field end
    local help = suggest(key, { "value", "weight" })
    return nil, named(name) .. " has the unknown field `" .. key .. "` (" .. help .. ")", name .. "." .. key
  end
  local value, weight = rawget(given, "value"), rawget(given, "weight")
  if value == nil then return nil, named(name) .. " has no value (nil)", name .. ".value" end
  if not is_finite(value) then return not_finite(name .. ".value", named(name), value) end
  if weight == nil then return value, 1 end
  if not is_finite(weight) then return not_finite(name .. ".weight", named(name) .. ": weight", weight) end
  return value, weight
end

local results = {}

function results.step(value) return step("step", value) end

--- A flow returns nothing, a reward, or a table as `step` does. The task is done unless `truncated`
--- is set.
function results.flow(value)
  if type(value) == "table" and rawget(value, "done") == false then
    local ends = "it continues with policy:generate, and ends early with truncated = true"
    return nil, "the flow returned with done = false; " .. ends, "done"
  elseif type(value) == "table" then
    local result, why, field = step("flow", value)
    if result == nil then return nil, why, field end
    result.done = result.done or not result.truncated
    return result
  elseif value ~= nil and type(value) ~= "number" then
    return nil, "the flow returned " .. kind(value) .. "; it must return a number, a table or nothing", ""
  end
  if value ~= nil and not is_finite(value) then return not_finite("", "flow: reward", value) end
  return { reward = value or 0, done = true, truncated = false, parts = {} }
end

--- A reward is a number, or a table of named parts, of which `total` is the reward if present.
--- Otherwise the parts are summed; { value =, weight = } counts as value times weight (weight 0:
--- only logged).
function results.reward(value)
  if type(value) == "number" then
    if not is_finite(value) then return not_finite("", "reward", value) end
    return { total = value, parts = {} }
  elseif type(value) ~= "table" then
    return nil, "reward returned " .. kind(value) .. "; it must return a number or a table of named parts", ""
  end
  local sorted, why, field = names(value)
  if sorted == nil then return nil, why, field end
  local total, sum, read = nil, 0, {}
  for _, name in sorted do
    local given = rawget(value, name)
    if name == "total" then
      if not is_finite(given) then return not_finite(name, "reward: total", given) end
      total = given
    else
      local part, weight, field = part_of_reward(name, given)
      -- The second result is the reason then.
      if part == nil then return nil, weight, field end
      if weight ~= 0 then sum += part * weight end
      read[name] = part
    end
  end
  if total == nil and next(read) == nil then
    return nil, "reward returned an empty table; it must return a number or a table of named parts", ""
  end
  total = total or sum
  if total - total ~= 0 then return nil, "the sum of the reward's parts is " .. show(total), "" end
  return { total = total, parts = read }
end

return results
