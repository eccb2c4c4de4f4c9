-- The size of a value in JSON if it is plain data: text, numbers, booleans, tables
-- without metatables (except the note of a table's JSON details). A table that occurs
-- twice counts twice; one that contains itself is nested without end.

local null, empty_list = ... -- host: JSON's null, and the metatable of an empty list

-- Bytes of a table and of its keys and values, in addition to the text.
local TABLE, NAMED, LISTED = 48, 32, 16
local DEPTH = 100

local function walk(value, most, depth)
  local meta = getmetatable(value)
  if meta ~= nil and meta ~= empty_list and not (type(meta) == "table" and type(rawget(meta, "__r1_json")) == "string") then
    return nil, "has a metatable; plain data has none", ""
  end
  if depth == DEPTH then return nil, "is nested too deeply, or contains itself", "" end
  local size = TABLE
  for key, item in next, value do
    local kind = type(key)
    if kind == "string" then
      size = size + NAMED + #key
    elseif kind == "number" or kind == "boolean" then
      size = size + LISTED
    else
      return nil, "has a " .. kind .. " as a key", ""
    end
    local own = type(item)
    if own == "string" then
      size = size + #item
    elseif own == "table" then
      local inner, why, path = walk(item, most - size, depth + 1)
      if inner == nil then
        local place = kind == "string" and "." .. string.sub(key, 1, 100) or "[" .. tostring(key) .. "]"
        return nil, why, place .. path
      end
      size = size + inner
    elseif own ~= "number" and own ~= "boolean" and item ~= null then
      local place = kind == "string" and "." .. string.sub(key, 1, 100) or "[" .. tostring(key) .. "]"
      return nil, "is a " .. own .. "; plain data holds text, numbers, booleans and tables", place
    end
    if size > most then return nil, "large", "" end
  end
  return size
end

local entries = {}

--- Calls `reset` and measures the state: returns the state and its size in bytes; or nil, the error
--- ("large": more than `most`) and its place.
function entries.reset(reset, most)
  return function(task, kwargs)
    local state = reset(task, kwargs)
    if type(state) ~= "table" then return state end
    return state, walk(state, most, 0)
  end
end

--- Calls `step` and measures the state: returns the result, or nil with its reward and `done` if it
--- has no other fields and both are valid, so that the host reads no table; then the size.
function entries.step(step, most)
  return function(state, text, token_ids, finish_reason, tool_calls)
    local result = step(state, {
      text = text,
      token_ids = token_ids or {},
      finish_reason = finish_reason,
      tool_calls = tool_calls or {},
    })
    if type(result) == "table" and getmetatable(result) == nil then
      local reward, done = result.reward, result.done
      local known = (reward == nil and 0 or 1) + (done == nil and 0 or 1)
      for _ in next, result do known = known - 1 end
      if reward == nil then reward = 0 end
      -- reward - reward is not 0 for infinity and NaN
      local plain = type(reward) == "number" and reward - reward == 0 and (done == nil or type(done) == "boolean")
      if plain and known == 0 then return nil, reward, done or false, walk(state, most, 0) end
    end
    return result, nil, nil, walk(state, most, 0)
  end
end

--- Calls `context` and measures its result: messages, a view of some, text or token ids.
function entries.context(context, most)
  return function(state, tokens)
    local shown = context(state, { tokens = tokens })
    if type(shown) == "table" then
      return shown, walk(getmetatable(shown) ~= nil and rawget(shown, "messages") or shown, most, 0)
    end
    return shown, type(shown) == "string" and #shown or 0
  end
end

--- The size of a table.
function entries.size(value, most)
  return walk(value, most, 0)
end

return entries
