-- Images and videos in messages: a part in any form becomes the part with the hash of its image,
-- and a mark in a text the image or the video of the task's row.

local store = ... -- host: the part with the hash of an image; raises an error that names its place

-- The types of parts with images and videos, and what they are.
local KINDS = { image = "image", image_url = "image", video = "video", video_url = "video" }

-- The kind of a part, image or video; nil for others.
local function kind_of(part) return type(part) == "table" and KINDS[part.type] or nil end

-- Whether a part stands for an image or video of the row, as in datasets for TRL.
local function is_bare(part)
  return next(part, next(part)) == nil
end

-- The first mark in a text from a place on, of the kinds in `columns`: its kind, first and last
-- byte.
local function next_mark(text, from, columns)
  local kind, first, last
  for each in columns do
    local a, b = string.find(text, "<" .. each .. ">", from, true)
    if a and (first == nil or a < first) then kind, first, last = each, a, b end
  end
  return kind, first, last
end

-- A content whose images are stored; the same content if it has no other images. `media` has the
-- images and videos of the row by kind, and `take`, which returns the next one.
local function stored(content, place, media)
  local parts, changed = {}, false
  local function add(part) parts[#parts + 1] = part end
  local columns = media and media.columns or {}
  for k, part in ipairs(type(content) == "string" and { { type = "text", text = content } } or content) do
    local text = type(part) == "table" and part.text
    if type(text) == "string" and next_mark(text, 1, columns) then
      changed = true
      local from = 1
      while true do
        local kind, first, last = next_mark(text, from, columns)
        local piece = string.sub(text, from, first and first - 1)
        if piece ~= "" then add { type = "text", text = piece } end
        if kind == nil then break end
        add(media.take(kind))
        from = last + 1
      end
    elseif kind_of(part) and part.hash == nil then
      changed = true
      local bare = columns[kind_of(part)] and is_bare(part)
      add(bare and media.take(kind_of(part)) or store(part, place .. ".content[" .. k .. "]"))
    else
      add(part)
    end
  end
  return changed and parts or content
end

-- The images of a row, or its videos: a list, or a single one.
local function column_of(task, kind)
  local list = type(task) == "table" and task[kind .. "s"]
  local column = list or type(task) == "table" and task[kind]
  if type(column) == "string" then return string.find(column, "^data:") and { column } or {} end
  if type(column) ~= "table" then return {} end
  for _, name in ipairs { "hash", "bytes", "base64", "data", "url", "rgb", "path", "frames", "video" } do
    if column[name] ~= nil then return { column } end
  end
  -- A video alone is the list of its frames.
  return if kind == "video" and not list then { column } else column
end

local images = {}

--- Stores the images of messages. Messages that change are replaced by copies, in the list itself
--- unless it is frozen. `name` is the name of the list in errors.
function images.store(messages, name, media)
  if table.isfrozen(messages) then messages = table.clone(messages) end
  for k, message in ipairs(messages) do
    local content = type(message) == "table" and message.content
    if type(content) == "table" or media and type(content) == "string" then
      local parts = stored(content, name .. "[" .. k .. "]", media)
      if parts ~= content then
        messages[k] = table.clone(message)
        messages[k].content = parts
      end
    end
  end
  return messages
end

--- The same for the first prompt of a task: each `<image>` in a text is the place of the next image
--- of the row's column `images` (or `image`), and each `<video>` of the next video of `videos`, as
--- in datasets for verl. `required`: they must have places.
function images.place(messages, name, task, required)
  local columns, placed = {}, { image = 0, video = 0 }
  for kind in placed do
    local column = column_of(task, kind)
    if #column > 0 then columns[kind] = column end
  end
  local function take(kind)
    placed[kind] += 1
    local column, number = columns[kind], placed[kind]
    local item = column[number]
    if item == nil then
      error(`the messages have more <{kind}> than the row has {kind}s: {#column}`, 0)
    end
    if type(item) ~= "table" then item = { [kind] = item } end
    if item.hash then return { type = kind, hash = item.hash } end
    if kind == "video" then
      item = if item[1] ~= nil then { frames = item } else table.clone(item)
      item.type = "video"
    end
    return store(item, `{kind} {number} of the row`)
  end
  messages = images.store(messages, name, next(columns) and { columns = columns, take = take } or nil)
  for kind, column in columns do
    if placed[kind] < #column and (placed[kind] > 0 or required) then
      error(`the row has {#column} {kind}s, and the messages have {placed[kind]} <{kind}>`, 0)
    end
  end
  return messages
end

return images
