-- Images in messages: a part in any form becomes the part with the hash of its image, and a mark in
-- a text the image of the task's row.

local store = ... -- host: the part with the hash of an image; raises an error that names its place

local MARK = "<image>"

local function is_image(part) return type(part) == "table" and (part.type == "image" or part.type == "image_url") end

-- Whether a part stands for an image of the row, as in datasets for TRL.
local function is_bare(part)
  return next(part, next(part)) == nil
end

-- A content whose images are stored; the same content if it has no other images. `take` returns the
-- image of the next mark.
local function stored(content, place, take)
  local parts, changed = {}, false
  local function add(part) parts[#parts + 1] = part end
  for k, part in ipairs(type(content) == "string" and { { type = "text", text = content } } or content) do
    local text = type(part) == "table" and part.text
    if take and type(text) == "string" and string.find(text, MARK, 1, true) then
      changed = true
      for n, piece in ipairs(string.split(text, MARK)) do
        if n > 1 then add(take()) end
        if piece ~= "" then add { type = "text", text = piece } end
      end
    elseif is_image(part) and part.hash == nil then
      changed = true
      add(take and is_bare(part) and take() or store(part, place .. ".content[" .. k .. "]"))
    else
      add(part)
    end
  end
  return changed and parts or content
end

-- The images of a row: a list, one image, or none.
local function column_of(task)
  local column = type(task) == "table" and (task.images or task.image)
  if type(column) == "string" then return string.find(column, "^data:") and { column } or {} end
  if type(column) ~= "table" then return {} end
  for _, name in ipairs { "hash", "bytes", "base64", "url", "rgb", "path" } do
    if column[name] ~= nil then return { column } end
  end
  return column
end

local images = {}

--- Stores the images of messages. Messages that change are replaced by copies, in the list itself
--- unless it is frozen. `name` is the name of the list in errors.
function images.store(messages, name, take)
  if table.isfrozen(messages) then messages = table.clone(messages) end
  for k, message in ipairs(messages) do
    local content = type(message) == "table" and message.content
    if type(content) == "table" or take and type(content) == "string" then
      local parts = stored(content, name .. "[" .. k .. "]", take)
      if parts ~= content then
        messages[k] = table.clone(message)
        messages[k].content = parts
      end
    end
  end
  return messages
end

--- The same for the first prompt of a task: each `<image>` in a text is the place of the next image
--- of the row's column `images` (or `image`), as in datasets for verl. `required`: the images must
--- have places.
function images.place(messages, name, task, required)
  local column, placed = column_of(task), 0
  local function take()
    placed += 1
    local image = column[placed]
    if image == nil then error("the messages have more " .. MARK .. " than the row has images: " .. #column, 0) end
    if type(image) ~= "table" then image = { type = "image", image = image } end
    if image.hash then return { type = "image", hash = image.hash } end
    return store(image, "image " .. placed .. " of the row")
  end
  messages = images.store(messages, name, #column > 0 and take or nil)
  if placed < #column and (placed > 0 or required) then
    error("the row has " .. #column .. " images, and the messages have " .. placed .. " " .. MARK, 0)
  end
  return messages
end

return images
