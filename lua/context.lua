-- A view of a conversation: the messages of the next prompt. The conversation itself is never
-- changed; changed messages are copies. lua/compaction.lua has the policies that create new text.

local fits, tokens_of = ... -- host: whether messages have at most n tokens; their number of tokens

local Context = {}
Context.__index = Context

-- Raised at the caller of the method: two levels above the check.
local function whole(name, value, level)
  if type(value) ~= "number" or value < 0 or value ~= math.floor(value) or value > 2 ^ 53 then
    error(name .. ": takes a whole number, 0 or more, got " .. tostring(value), (level or 1) + 2)
  end
  return value
end

--- The first n messages are never dropped. Default: all messages before the first reply.
function Context:keep_first(n)
  self.first = whole("keep_first", n)
  return self
end

--- The last n messages are never dropped. Default: one.
function Context:keep_last(n)
  self.last = whole("keep_last", n)
  return self
end

--- Number of tokens of the messages in the prompt, including template and tools.
function Context:tokens()
  return tokens_of(self.messages)
end

-- The smallest n from 1 to high with holds(n); high if there is none.
local function fewest(high, holds)
  local low = 1
  while low < high do
    local middle = (low + high) // 2
    if holds(middle) then high = middle else low = middle + 1 end
  end
  return high
end

-- The droppable units between the `first` and the `last` messages, oldest first, as { from, to }. A
-- user message, its reply and the results of its calls are one unit: a result needs its call, and
-- many templates require alternating users and replies.
local function units(messages, first, last_ones)
  local found = {}
  local k, stop = first + 1, #messages - last_ones
  while k <= stop do
    local last = k
    local function behind(role) return (messages[last + 1] or {}).role == role end
    while messages[last].role == "user" and (behind("user") or behind("assistant")) do last = last + 1 end
    if messages[last].role == "assistant" then
      while last < #messages and messages[last + 1].role == "tool" do last = last + 1 end
    end
    if last > stop then break end
    found[#found + 1] = { k, last }
    k = last + 1
  end
  return found
end

-- The messages without units 1..n, which are adjacent.
local function without(messages, gone, n)
  local kept = {}
  for k, message in ipairs(messages) do
    if n == 0 or k < gone[1][1] or k > gone[n][2] then kept[#kept + 1] = message end
  end
  return kept
end

--- A window by tokens: drops the oldest messages that are not kept until the others have at most
--- this number of tokens.
function Context:drop_oldest_until(tokens)
  whole("drop_oldest_until", tokens)
  if fits(self.messages, tokens) then return self end
  local gone = units(self.messages, self.first, self.last)
  -- At least one message must be left.
  local most = self.first + self.last == 0 and #gone - 1 or #gone
  if most > 0 then
    -- Dropping more never increases the number of tokens.
    local n = fewest(most, function(n) return fits(without(self.messages, gone, n), tokens) end)
    self.messages = without(self.messages, gone, n)
  end
  self.least = not fits(self.messages, tokens)
  return self
end

--- A window by turns: the kept first messages and the last n turns. A turn is a reply, the user
--- message directly before it, and all messages up to the next turn.
function Context:last_turns(n)
  whole("last_turns", n)
  local starts = {}
  for k = self.first + 1, #self.messages do
    if self.messages[k].role == "assistant" then starts[#starts + 1] = k end
  end
  if #starts <= n then return self end
  local from = n == 0 and #self.messages + 1 or starts[#starts - n + 1]
  from = math.min(from, math.max(self.first, #self.messages - self.last) + 1)
  local function role(k) return (self.messages[k] or {}).role end
  -- A result is not separated from its call, nor a reply from the message it answers.
  while from > self.first + 1 and role(from) == "tool" do from = from - 1 end
  while from > self.first + 1 and role(from) == "assistant" and role(from - 1) == "user" do
    repeat from = from - 1 until from == self.first + 1 or role(from - 1) ~= "user"
  end
  local kept = {}
  for k, message in ipairs(self.messages) do
    if k <= self.first or k >= from then kept[#kept + 1] = message end
  end
  if #kept > 0 then self.messages = kept end
  return self
end

--- Applies change(message, place, count) to every message: the result replaces it, nil drops it.
function Context:map(change)
  if type(change) ~= "function" then error("map: takes a function of a message, got a " .. type(change), 2) end
  local shown, count = {}, #self.messages
  for k, message in ipairs(self.messages) do
    shown[#shown + 1] = change(table.clone(message), k, count)
  end
  self.messages = shown
  return self
end

local function context(messages)
  if type(messages) ~= "table" then
    error("r1.context: takes a list of messages, got " .. (messages == nil and "nil" or "a " .. type(messages)), 2)
  end
  local copy, first = {}, nil
  for k, message in ipairs(messages) do
    if type(message) ~= "table" then error("r1.context: message " .. k .. " is a " .. type(message), 2) end
    if first == nil and message.role == "assistant" then first = k - 1 end
    copy[k] = message
  end
  -- Keeps the prompt, and the last message, which the policy answers next.
  return setmetatable({ messages = copy, given = copy, first = first or #copy, last = 1, least = false }, Context)
end

return context, Context, { fewest = fewest, units = units, whole = whole }
