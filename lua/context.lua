-- A view of a list of messages: what to show the policy. The list itself is never changed.

local fits = ... -- host: do these messages have at most so many tokens?

local Context = {}
Context.__index = Context

local function count(name, value)
  if type(value) ~= "number" or value < 0 or value ~= math.floor(value) then
    error(name .. ": takes a whole number, 0 or more, got " .. tostring(value), 3)
  end
  return value
end

--- The first n messages are never dropped.
function Context:keep_first(n)
  self.first = count("keep_first", n)
  return self
end

--- The last n messages are never dropped.
function Context:keep_last(n)
  self.last = count("keep_last", n)
  return self
end

-- The list without its `n` oldest droppable units. A reply and the results of its calls are one unit: a result
-- without its call would answer nothing.
local function without(messages, units, n)
  local gone = {}
  for i = 1, n do
    for k = units[i][1], units[i][2] do gone[k] = true end
  end
  local kept = {}
  for k, message in ipairs(messages) do
    if not gone[k] then kept[#kept + 1] = message end
  end
  return kept
end

--- Drops the oldest messages that are not kept until the rest has at most so many tokens. If even the kept ones
--- have more, they are all that is left.
function Context:drop_oldest_until(tokens)
  count("drop_oldest_until", tokens)
  local messages = self.messages
  if fits(messages, tokens) then return self end
  local units = {}
  local k, stop = self.first + 1, #messages - self.last
  while k <= stop do
    local last = k
    if messages[k].role == "assistant" then
      while last < #messages and messages[last + 1].role == "tool" do last = last + 1 end
    end
    if last > stop then break end
    units[#units + 1] = { k, last }
    k = last + 1
  end
  -- The fewest units: more dropped never means more tokens.
  local low, high = 1, #units
  while low < high do
    local middle = (low + high) // 2
    local rest = without(messages, units, middle)
    if #rest == 0 or fits(rest, tokens) then high = middle else low = middle + 1 end
  end
  local rest = without(messages, units, high)
  if #rest > 0 then self.messages = rest end
  return self
end

local function context(messages)
  if type(messages) ~= "table" then
    error("r1.context: takes a list of messages, got " .. (messages == nil and "nil" or "a " .. type(messages)), 2)
  end
  local copy = {}
  for k, message in ipairs(messages) do copy[k] = message end
  -- The last message is what the policy answers now; it stays unless keep_last(0) says otherwise.
  return setmetatable({ messages = copy, first = 0, last = 1 }, Context)
end

return context, Context
