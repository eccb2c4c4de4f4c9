-- r1.re: matches as texts and tables. The host finds matches as positions: the first and the last
-- byte of the match, then of each group, or false twice for a group that has no part in it.

local first, all, escape, kind, fail = ... -- host

local sub, find, match = string.sub, string.find, string.match

-- Maximum bytes of a result of `replace`.
local TEXT = 2 ^ 24

-- The text of the group whose positions begin at `at`; nil for one without a part in the match.
local function part(text, positions, at)
  local start = positions[at]
  return start and sub(text, start, positions[at + 1]) or nil
end

-- The groups of a match, or the whole match if there are none. `width` counts the positions of a
-- match.
local function groups(text, positions, at, width)
  if width == 2 then return sub(text, positions[at], positions[at + 1]) end
  local count = width / 2 - 1
  local parts = table.create(count)
  for group = 1, count do parts[group] = part(text, positions, at + 2 * group) end
  return unpack(parts, 1, count)
end

-- { text =, first =, last =, [1] =, …, NAME = }
local function captures(text, positions, at, width, names)
  local made = {}
  for group = 1, width / 2 - 1 do
    local value = part(text, positions, at + 2 * group)
    made[group] = value
    if names and names[group] then made[names[group]] = value end
  end
  made.text = sub(text, positions[at], positions[at + 1])
  made.first, made.last = positions[at], positions[at + 1]
  return made
end

-- Iterates over the matches: the positions of several matches, and where one begins in them.
local function each(name, text, pattern, most)
  local more, width, names = all(name, text, pattern, most)
  local positions, at, count = nil, 0, 0
  local function step()
    at += width
    if at > count then
      positions = more()
      at, count = 1, positions and #positions or 0
    end
    return positions, at
  end
  return step, width, names
end

local re = { escape = escape }

--- The first and the last position of the first match, and its groups, like string.find.
function re.find(text, pattern, from)
  local positions = first("r1.re.find", text, pattern, from)
  if positions == nil then return nil end
  if #positions == 2 then return positions[1], positions[2] end
  return positions[1], positions[2], groups(text, positions, 1, #positions)
end

function re.match(text, pattern, from)
  local positions = first("r1.re.match", text, pattern, from)
  if positions == nil then return nil end
  return groups(text, positions, 1, #positions)
end

function re.captures(text, pattern)
  local positions, names = first("r1.re.captures", text, pattern)
  if positions == nil then return nil end
  return captures(text, positions, 1, #positions, names)
end

function re.find_all(text, pattern, most)
  local step, width, names = each("r1.re.find_all", text, pattern, most)
  local list = {}
  for positions, at in step do list[#list + 1] = captures(text, positions, at, width, names) end
  return list
end

function re.gmatch(text, pattern)
  local step, width = each("r1.re.gmatch", text, pattern)
  return function()
    local positions, at = step()
    if positions == nil then return nil end
    return groups(text, positions, at, width)
  end
end

function re.split(text, pattern, most)
  local step = each("r1.re.split", text, pattern, most)
  local parts, start = {}, 1
  if most == 0 then return parts end
  for positions, at in step do
    if #parts + 1 == most then break end
    parts[#parts + 1] = sub(text, start, positions[at] - 1)
    start = positions[at + 1] + 1
  end
  parts[#parts + 1] = sub(text, start)
  return parts
end

-- A template as a list of texts and numbers of groups: `$1`, `$name`, `${name}`, `$$`. A name
-- consists of letters, digits and `_`; a missing group is empty.
local function parsed(template, names)
  local numbers, list, at = {}, {}, 1
  for group, name in names or {} do numbers[name] = group end
  local function group(name) return match(name, "^%d+$") and tonumber(name) or numbers[name] or "" end
  while true do
    local dollar = find(template, "$", at, true)
    list[#list + 1] = sub(template, at, (dollar or 0) - 1)
    if dollar == nil then return list end
    local braced, plain = match(template, "^{([^}]*)}", dollar + 1), match(template, "^[%w_]+", dollar + 1)
    if braced then
      list[#list + 1], at = group(braced), dollar + #braced + 3
    elseif plain then
      list[#list + 1], at = group(plain), dollar + #plain + 1
    else
      -- `$$`, or a `$` as it is.
      list[#list + 1], at = "$", dollar + (sub(template, dollar + 1, dollar + 1) == "$" and 2 or 1)
    end
  end
end

--- Replaces by a text with groups or a function of the match; returns the new text and the number
--- of replacements. As in string.gsub, a function that returns nil keeps the match.
function re.replace(text, pattern, with, most)
  local name = "r1.re.replace"
  local step, width, names = each(name, text, pattern, most)
  local parts, bytes, start, count = {}, 0, 1, 0
  local template = type(with) == "string" and parsed(with, names)
  local function add(new)
    parts[#parts + 1] = new
    bytes += #new
    if bytes > TEXT then fail(name, "the result has more than " .. TEXT .. " bytes") end
  end
  for positions, at in step do
    add(sub(text, start, positions[at] - 1))
    if template then
      for _, piece in template do
        if type(piece) == "number" then
          piece = piece < width / 2 and part(text, positions, at + 2 * piece) or ""
        end
        add(piece)
      end
    elseif type(with) == "function" then
      local new = with(captures(text, positions, at, width, names))
      if new == nil or new == false then
        new = sub(text, positions[at], positions[at + 1])
      elseif type(new) ~= "string" then
        fail(name, "the function returned " .. kind(new) .. "; it must return text or nil")
      end
      add(new)
    else
      fail(name, "`with` must be text or a function, got " .. kind(with))
    end
    start, count = positions[at + 1] + 1, count + 1
  end
  parts[#parts + 1] = sub(text, start)
  return table.concat(parts), count
end

return re
