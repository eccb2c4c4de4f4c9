-- Functions of the standard library that run in C, where CPU limits do not apply: calls that could
-- take seconds are refused or implemented in Lua.

local refuse = ... -- host: raises an error at the caller's line

local find, match, gmatch, gsub, split = string.find, string.match, string.gmatch, string.gsub, string.split
local move, sort = table.move, table.sort

-- Maximum product of text and pattern length in bytes, the comparisons of the slowest pattern.
local COMPARED = 2 ^ 31
-- Maximum elements per move, elements per sort in C, and bytes of a text sorted in C.
local MOVED, SORTED, LONG = 2 ^ 24, 2 ^ 16, 2 ^ 12

local function check(name, text, pattern)
  if type(text) == "string" and type(pattern) == "string" and #text * #pattern > COMPARED then
    refuse("string." .. name .. ": a pattern of " .. #pattern .. " bytes over a text of " .. #text .. " is too much work")
  end
end

function string.find(text, pattern, start, plain)
  check("find", text, pattern)
  return find(text, pattern, start, plain)
end

function string.match(text, pattern, start)
  check("match", text, pattern)
  return match(text, pattern, start)
end

function string.gmatch(text, pattern)
  check("gmatch", text, pattern)
  return gmatch(text, pattern)
end

function string.gsub(text, pattern, by, most)
  check("gsub", text, pattern)
  return gsub(text, pattern, by, most)
end

function string.split(text, separator)
  check("split", text, separator)
  return split(text, separator)
end

function table.move(from, first, last, to, into)
  if type(first) == "number" and type(last) == "number" and last - first > MOVED then
    refuse("table.move: " .. string.format("%.0f", last - first + 1) .. " elements are too many")
  end
  return move(from, first, last, to, into)
end

local function less(a, b)
  return a < b
end

function table.sort(list, before)
  if before == nil and type(list) == "table" then
    local length = rawlen(list)
    if length > SORTED then before = less end
    for k = 1, before == nil and length or 0 do
      local item = rawget(list, k)
      if type(item) == "string" and #item > LONG then
        before = less
        break
      end
    end
  end
  return sort(list, before)
end
