-- Context policies that create new text: shortened old results, notes from a scratchpad, summaries.

-- tools: from lua/context.lua; rank: host, ranks texts by similarity to a query; generate: host,
-- samples text with the policy
local Context, tools, fits, clip, rank, generate = ...

-- Checks the options of a method against their names and types.
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

local IMAGES = { image = true, image_url = true, video = true, video_url = true }

-- Whether a part is an image or a video.
local function is_image(part) return IMAGES[part.type] == true end

-- A message's images and videos, as parts.
local function images_of(message)
  local images = {}
  for _, part in ipairs(type(message.content) == "table" and message.content or {}) do
    if is_image(part) then images[#images + 1] = part end
  end
  return images
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

-- The messages with a text appended to the end of the prompt (the last kept first message) or to
-- the last message. A separate message could follow one of the same role, which many templates
-- refuse.
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

-- Shows changed(count), with the oldest `count` items changed; with `over`, only as many as needed.
local function change_oldest(self, count, over, changed)
  if count <= 0 or over and fits(self.messages, over) then return self end
  if over then count = tools.fewest(count, function(n) return fits(changed(n), over) end) end
  self.messages = changed(count)
  self.least = over ~= nil and not fits(self.messages, over)
  return self
end

-- Changes the text of old tool results: all but the last `keep`, with `over` as above.
local function change_results(self, settings, keeps_images, change)
  local places = {}
  for k, message in ipairs(self.messages) do
    if message.role == "tool" then places[#places + 1] = k end
  end
  local function changed(n)
    local shown = table.clone(self.messages)
    for k = 1, n do
      local message = table.clone(shown[places[k]])
      local content, images = text_of(message), images_of(message)
      local short = change(content)
      -- The result must not get longer.
      if #short < #content or #images > 0 and not keeps_images then
        message.content = short
        if keeps_images and #images > 0 then
          table.insert(images, 1, { type = "text", text = short })
          message.content = images
        end
      end
      shown[places[k]] = message
    end
    return shown
  end
  return change_oldest(self, #places - (settings.keep or 1), settings.over, changed)
end

--- Replaces old tool results, images included, by `text`; their calls stay. `keep`: number of last
--- results that are not changed (1); `over`: only while there are more tokens than this, oldest
--- first.
function Context:drop_tool_results(given)
  local settings = options("drop_tool_results", given, { keep = "count", over = "count", text = "string" })
  local text = settings.text or "(result left out)"
  return change_results(self, settings, false, function() return text end)
end

--- Truncates old tool results to the first `head` characters (200) and the last `tail` (0). `keep`
--- and `over` as above. Their images stay.
function Context:shorten_tool_results(given)
  local known = { keep = "count", over = "count", head = "count", tail = "count" }
  local settings = options("shorten_tool_results", given, known)
  local head, tail = settings.head or 200, settings.tail or 0
  return change_results(self, settings, true, function(content) return clip(content, head, tail) end)
end

--- Replaces old images by `text` ("[image removed]"): all but the last `keep` (1). `over` as above.
function Context:drop_images(given)
  local settings = options("drop_images", given, { keep = "count", over = "count", text = "string" })
  local places = {}
  for k, message in ipairs(self.messages) do
    for n, part in ipairs(type(message.content) == "table" and message.content or {}) do
      if is_image(part) then places[#places + 1] = { message = k, part = n } end
    end
  end
  local function changed(n)
    local shown = table.clone(self.messages)
    for index = 1, n do
      local k = places[index].message
      if shown[k] == self.messages[k] then
        shown[k] = table.clone(shown[k])
        shown[k].content = table.clone(shown[k].content)
      end
      shown[k].content[places[index].part] = { type = "text", text = settings.text or "[image removed]" }
    end
    return shown
  end
  return change_oldest(self, #places - (settings.keep or 1), settings.over, changed)
end

--- Adds notes of a scratchpad: the `most` (3) that are most similar to `query` (default: the last
--- message's text), in the order of `notes`, below `title`, at the end of the prompt (`at =
--- "first"`) or of the last message. `over`: only as many as keep the conversation at this number
--- of tokens.
function Context:recall(given)
  local known = { notes = "table", query = "string", most = "count", over = "count", title = "string", at = "string" }
  local settings = options("recall", given, known)
  if settings.notes == nil then error("recall: needs `notes`, a list of texts: a field of the state", 2) end
  local place = settings.at or "first"
  if place ~= "first" and place ~= "last" then error("recall: `at` is \"first\" or \"last\"", 2) end
  local texts = {}
  for k, note in ipairs(settings.notes) do
    local text = note
    if type(note) == "table" then text = note.text end
    if type(text) ~= "string" then error("recall: note " .. k .. " is neither text nor a table with `text`", 2) end
    texts[k] = text
  end
  local last = self.messages[#self.messages]
  local found = rank(settings.query or (last and text_of(last)) or "", texts)
  local function shown(n)
    local places, lines = {}, { settings.title or "Notes:" }
    for k = 1, n do places[k] = found[k].index end
    table.sort(places)
    for _, at in ipairs(places) do lines[#lines + 1] = "- " .. texts[at] end
    return n == 0 and self.messages or attach(self, self.messages, table.concat(lines, "\n"), place)
  end
  local n = math.min(#found, settings.most or 3)
  while n > 0 and settings.over and not fits(shown(n), settings.over) do n = n - 1 end
  self.messages = shown(n)
  if n > 0 then self.first = math.max(self.first, 1) end
  return self
end

local INSTRUCTION = "Sum up this part of a conversation for the one who goes on with it: what was asked, what was done and "
  .. "found, what is left to do. Be brief."

-- The default summariser, which uses the policy or a named model.
local function summarizer(settings)
  return function(messages, earlier)
    local lines = { settings.instruction or INSTRUCTION, "" }
    if earlier then lines[#lines + 1] = "Summary of what came before: " .. earlier end
    for _, message in ipairs(messages) do
      lines[#lines + 1] = message.role .. ": " .. text_of(message) .. string.rep(" [image]", #images_of(message))
    end
    local options = { max_new_tokens = settings.max_new_tokens or 256, model = settings.model, train = settings.train }
    local text, why = generate(table.concat(lines, "\n"), options)
    if text == nil then error("summarize: no summary: " .. why, 0) end
    return text
  end
end

--- Above `over` tokens, replaces the oldest messages that are not kept by a summary, so that about
--- `to` tokens are left (default: half of `over`). The summary is written by the policy
--- (r1.generate with `model`, `max_new_tokens`, `train`, after an `instruction`), or by a function
--- `write(messages, earlier)`, which receives the dropped messages and the previous summary and
--- returns text. It is stored in `memory.summary` (`memory` is usually the state), so that it is
--- written once and later steps extend it.
function Context:summarize(given)
  local known = {
    over = "count", to = "count", memory = "table", title = "string", write = "function",
    instruction = "string", model = "model", max_new_tokens = "count", train = "boolean",
  }
  local settings = options("summarize", given, known)
  for _, name in ipairs { "over", "memory" } do
    if settings[name] == nil then error("summarize: needs `" .. name .. "`", 2) end
  end
  for _, name in ipairs { "instruction", "model", "max_new_tokens", "train" } do
    if settings.write and settings[name] ~= nil then error("summarize: `" .. name .. "` has no effect with `write`", 2) end
  end
  local write = settings.write or summarizer(settings)
  if self.messages ~= self.given then error("summarize: comes first, before messages are dropped or changed", 2) end
  local title = settings.title or "Summary of what came before:"
  local memory = settings.memory
  local whole, first = self.messages, self.first
  -- Replaces the messages up to `upto` by the summary.
  local function shown(upto, text)
    if text == nil then return whole end
    local kept = {}
    for k, message in ipairs(whole) do
      if k <= first or k > upto then kept[#kept + 1] = message end
    end
    return attach(self, kept, title .. "\n" .. text, "first")
  end
  local summary = memory.summary
  -- A summary of an earlier conversation does not apply after a reset.
  if type(summary) ~= "table" or type(summary.upto) ~= "number" or summary.upto > #whole - self.last then summary = nil end
  local upto, text = summary and summary.upto or first, summary and summary.text
  self.messages = shown(upto, text)
  if not fits(self.messages, settings.over) then
    local going = tools.units(whole, upto, self.last)
    if #going > 0 then
      local to = settings.to or settings.over // 2
      local n = tools.fewest(#going, function(n) return fits(shown(going[n][2], text or ""), to) end)
      local messages = {}
      for k = upto + 1, going[n][2] do messages[#messages + 1] = whole[k] end
      upto, text = going[n][2], write(messages, text)
      if type(text) ~= "string" then error("summarize: `write` gave a " .. type(text) .. "; it must give text", 2) end
      memory.summary = { upto = upto, text = text }
      self.messages = shown(upto, text)
    end
    self.least = not fits(self.messages, settings.over)
  end
  if text ~= nil then self.first = math.max(first, 1) end
  return self
end
