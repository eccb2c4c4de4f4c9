-- Context policies that write something new: short forms of old results, notes from a scratchpad, summaries.

-- tools: of lua/context.lua; rank: host, texts by likeness to a query; generate: host, a text that the policy writes
local Context, tools, fits, clip, rank, generate = ...

-- The options of a method, each of a known name and type.
local function options(name, given, known)
  if given == nil then given = {} end
  if type(given) ~= "table" then error(name .. ": takes a table of options, got a " .. type(given), 3) end
  for key, value in pairs(given) do
    local kind = known[key]
    if kind == nil then
      local names = {}
      for accepted in pairs(known) do names[#names + 1] = accepted end
      table.sort(names)
      error(name .. ": unknown option `" .. tostring(key) .. "`; it takes " .. table.concat(names, ", "), 3)
    end
    if kind == "count" then
      tools.whole(name .. ": `" .. key .. "`", value, 2)
    elseif kind == "model" then
      if type(value) ~= "string" and type(value) ~= "table" then
        error(name .. ": `" .. key .. "` must be a name, or { url =, name =, key = }, got a " .. type(value), 3)
      end
    elseif type(value) ~= kind then
      error(name .. ": `" .. key .. "` must be a " .. kind .. ", got a " .. type(value), 3)
    end
  end
  return given
end

-- A message's text.
local function text_of(message)
  if type(message.content) ~= "table" then return message.content or "" end
  local texts = {}
  for _, part in ipairs(message.content) do texts[#texts + 1] = part.text end
  return table.concat(texts)
end

-- A copy of a message with more text at its end.
local function with_text(message, text)
  local copy = table.clone(message)
  if type(message.content) == "table" then
    copy.content = table.clone(message.content)
    copy.content[#copy.content + 1] = { type = "text", text = "\n\n" .. text }
  else
    copy.content = (message.content or "") .. "\n\n" .. text
  end
  return copy
end

-- The messages with a text added: at the end of the prompt (the last kept first message) or of the last message. A
-- message of its own could stand beside one of the same role, which many templates refuse.
local function attach(self, messages, text, place)
  local shown = table.clone(messages)
  local at = place == "last" and #shown or math.min(self.first, #shown)
  if at == 0 then
    table.insert(shown, 1, { role = "user", content = text })
  else
    shown[at] = with_text(shown[at], text)
  end
  return shown
end

-- Changes the content of old tool results: all but the last `keep`; with `over`, the oldest and only as many as needed.
local function change_results(self, asked, change)
  local places = {}
  for k, message in ipairs(self.messages) do
    if message.role == "tool" then places[#places + 1] = k end
  end
  local count = #places - (asked.keep or 1)
  if count <= 0 then return self end
  local function changed(n)
    local shown = table.clone(self.messages)
    for k = 1, n do
      local message = table.clone(shown[places[k]])
      local content = text_of(message)
      local short = change(content)
      -- Never more than it was.
      if #short < #content then message.content = short end
      shown[places[k]] = message
    end
    return shown
  end
  if asked.over then
    if fits(self.messages, asked.over) then return self end
    count = tools.fewest(count, function(n) return fits(changed(n), asked.over) end)
  end
  self.messages = changed(count)
  self.least = asked.over ~= nil and not fits(self.messages, asked.over)
  return self
end

--- Old tool results give way to `text`; their calls stay. `keep`: how many of the last stay as they are (1); `over`: only
--- while there are more tokens than that, oldest first.
function Context:drop_tool_results(given)
  local asked = options("drop_tool_results", given, { keep = "count", over = "count", text = "string" })
  local text = asked.text or "(result left out)"
  return change_results(self, asked, function() return text end)
end

--- Of old tool results the first `head` characters are shown (200) and the last `tail` (0). `keep` and `over` as above.
function Context:shorten_tool_results(given)
  local known = { keep = "count", over = "count", head = "count", tail = "count" }
  local asked = options("shorten_tool_results", given, known)
  local head, tail = asked.head or 200, asked.tail or 0
  return change_results(self, asked, function(content) return clip(content, head, tail) end)
end

--- Puts notes of a scratchpad into view: the `most` (3) that are most like `query` (the last message's text), as they stand in
--- `notes`, below `title`, at the end of the prompt (`at = "first"`) or of the last message. `over`: as many as leave the
--- conversation at most so many tokens.
function Context:recall(given)
  local known = { notes = "table", query = "string", most = "count", over = "count", title = "string", at = "string" }
  local asked = options("recall", given, known)
  if asked.notes == nil then error("recall: needs `notes`, a list of texts: a field of the state", 2) end
  local place = asked.at or "first"
  if place ~= "first" and place ~= "last" then error("recall: `at` is \"first\" or \"last\"", 2) end
  local texts = {}
  for k, note in ipairs(asked.notes) do
    local text = note
    if type(note) == "table" then text = note.text end
    if type(text) ~= "string" then error("recall: note " .. k .. " is neither text nor a table with `text`", 2) end
    texts[k] = text
  end
  local last = self.messages[#self.messages]
  local found = rank(asked.query or (last and text_of(last)) or "", texts)
  local function shown(n)
    local places, lines = {}, { asked.title or "Notes:" }
    for k = 1, n do places[k] = found[k].index end
    table.sort(places)
    for _, at in ipairs(places) do lines[#lines + 1] = "- " .. texts[at] end
    return n == 0 and self.messages or attach(self, self.messages, table.concat(lines, "\n"), place)
  end
  local n = math.min(#found, asked.most or 3)
  while n > 0 and asked.over and not fits(shown(n), asked.over) do n = n - 1 end
  self.messages = shown(n)
  if n > 0 then self.first = math.max(self.first, 1) end
  return self
end

local INSTRUCTION = "Sum up this part of a conversation for the one who goes on with it: what was asked, what was done and "
  .. "found, what is left to do. Be brief."

-- The writer that has the policy, or a model by name, sum up.
local function summarizer(asked)
  return function(messages, earlier)
    local lines = { asked.instruction or INSTRUCTION, "" }
    if earlier then lines[#lines + 1] = "Summary of what came before: " .. earlier end
    for _, message in ipairs(messages) do lines[#lines + 1] = message.role .. ": " .. text_of(message) end
    local options = { max_new_tokens = asked.max_new_tokens or 256, model = asked.model, train = asked.train }
    local text, why = generate(table.concat(lines, "\n"), options)
    if text == nil then error("summarize: no summary: " .. why, 0) end
    return text
  end
end

--- Above `over` tokens the oldest messages that are not kept give way to a summary, so that about `to` tokens are left (half
--- of `over`). The policy writes it (r1.generate with `model`, `max_new_tokens`, `train`, after an `instruction`), or a function:
--- `write(messages, earlier)` gets those that go and the summary so far, and gives text. It is kept in `memory.summary`
--- (`memory` is the state, as a rule), so that it is written once and steps go on from it.
function Context:summarize(given)
  local known = {
    over = "count", to = "count", memory = "table", title = "string", write = "function",
    instruction = "string", model = "model", max_new_tokens = "count", train = "boolean",
  }
  local asked = options("summarize", given, known)
  for _, name in ipairs { "over", "memory" } do
    if asked[name] == nil then error("summarize: needs `" .. name .. "`", 2) end
  end
  for _, name in ipairs { "instruction", "model", "max_new_tokens", "train" } do
    if asked.write and asked[name] ~= nil then error("summarize: `" .. name .. "` does nothing beside `write`", 2) end
  end
  local write = asked.write or summarizer(asked)
  if self.messages ~= self.given then error("summarize: comes first, before messages are dropped or changed", 2) end
  local title = asked.title or "Summary of what came before:"
  local memory = asked.memory
  local whole, first = self.messages, self.first
  -- Messages up to `upto` are told by the summary.
  local function shown(upto, text)
    if text == nil then return whole end
    local kept = {}
    for k, message in ipairs(whole) do
      if k <= first or k > upto then kept[#kept + 1] = message end
    end
    return attach(self, kept, title .. "\n" .. text, "first")
  end
  local summary = memory.summary
  -- A conversation that was begun anew has nothing to do with it.
  if type(summary) ~= "table" or type(summary.upto) ~= "number" or summary.upto > #whole - self.last then summary = nil end
  local upto, text = summary and summary.upto or first, summary and summary.text
  self.messages = shown(upto, text)
  if not fits(self.messages, asked.over) then
    local going = tools.units(whole, upto, self.last)
    if #going > 0 then
      local to = asked.to or asked.over // 2
      local n = tools.fewest(#going, function(n) return fits(shown(going[n][2], text or ""), to) end)
      local messages = {}
      for k = upto + 1, going[n][2] do messages[#messages + 1] = whole[k] end
      upto, text = going[n][2], write(messages, text)
      if type(text) ~= "string" then error("summarize: `write` gave a " .. type(text) .. "; it must give text", 2) end
      memory.summary = { upto = upto, text = text }
      self.messages = shown(upto, text)
    end
    self.least = not fits(self.messages, asked.over)
  end
  if text ~= nil then self.first = math.max(first, 1) end
  return self
end
