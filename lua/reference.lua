--- Files that are made from the declarations: the reference in docs/reference/lua.md, the types for
--- lua-language-server (lua/types/r1.lua), and the types of settings at the end of
--- lua/types/r1.d.luau.

--- Columns of a line.
local WIDTH = 100

--- A paragraph, wrapped: `first` begins its first line, `rest` the others.
local function wrapped(first, rest, paragraph)
  local text, column, is_start = first, utf8.len(first), true
  for word in string.gmatch(paragraph, "%S+") do
    local length = utf8.len(word)
    if is_start then
      is_start = false
    elseif column + 1 + length > WIDTH then
      text ..= "\n" .. rest
      column = utf8.len(rest)
    else
      text ..= " "
      column += 1
    end
    text ..= word
    column += length
  end
  return text .. "\n"
end

--- A text, wrapped. Paragraphs and indented lines stay apart.
local function wrap(first, rest, text)
  local page = ""
  for index, line in string.split(text, "\n") do
    local start = if index == 1 then first else rest
    if line == "" and index > 1 then
      page ..= "\n"
    elseif string.sub(line, 1, 1) == " " then
      page ..= start .. line .. "\n"
    else
      page ..= wrapped(start, rest, line)
    end
  end
  return page
end

--- Escapes angle brackets (tags) and stars (emphasis).
local function escape(text) return (string.gsub(text, "[<*]", "\\%0")) end

local function without_stop(text) return string.match(text, "^(.-)%.*$") end

local function key(name, doc) return name .. "\n" .. without_stop(doc) end

--- Parameters with a description. `settings` are listed in docs/reference/settings.md.
local function list(params, depth, settings)
  local page = ""
  for _, param in params do
    local fields = param.fields or {}
    local indent = string.rep("  ", math.max(depth - 1, 0))
    local is_table = param.type == "table"
    if settings[key(string.match(param.name, "^(.-)%?*$"), param.doc)] then continue end
    if param.doc == "" and #fields == 0 then
      if depth > 0 then page ..= `{indent}- \`{param.name}\` (\`{param.type}\`)\n` end
    elseif depth == 0 and param.doc == "" and is_table then
      page ..= list(fields, 1, settings)
    else
      local kind = if is_table then "" else ` (\`{param.type}\`)`
      local doc = if param.doc == "" then "" else ": " .. escape(param.doc)
      page ..= wrap(indent .. "- ", indent .. "  ", `\`{param.name}\`{kind}{doc}`)
      page ..= list(fields, math.max(depth, 1) + 1, settings)
    end
  end
  return page
end

local SCOPES = { anywhere = "", programs = " *(programs)*", tests = " *(tests)*" }

local function entry_of(entry, settings)
  local page = `\`{entry.signature}\`{SCOPES[entry.scope]}  \n` .. wrap("", "", escape(entry.doc)) .. "\n"
  local rows = list(entry.params, 0, settings)
  if rows ~= "" then page ..= rows .. "\n" end
  local returns = {}
  for _, result in entry.returns do
    local kind, doc = result[1], result[2]
    if doc ~= "" then table.insert(returns, `\`{kind}\`: {escape(doc)}`) end
  end
  if #returns > 0 then page ..= wrap("", "", `Returns {table.concat(returns, "; ")}.`) .. "\n" end
  if entry.example ~= "" then page ..= `\`\`\`lua\n{entry.example}\n\`\`\`\n\n` end
  return page
end

local reference = {}

--- The reference: namespaces in the order of their first entry, then globals and types.
function reference.markdown(docs)
  local settings = {}
  for _, setting in docs.settings do settings[key(setting.name, setting.doc)] = true end
  local spaces, entries = {}, {}
  for _, entry in docs.functions do
    if not entries[entry.space] then
      entries[entry.space] = ""
      if entry.space ~= "" then table.insert(spaces, entry.space) end
    end
    entries[entry.space] ..= entry_of(entry, settings)
  end
  if entries[""] then table.insert(spaces, "") end
  local page = "## Reference\n\n`r1 doc NAME` shows the same in the terminal; a `?` marks optional parameters and values that\n"
    .. "can be nil.\n"
  for _, space in spaces do
    page ..= `\n### {if space == "" then "Globals" else space}\n\n{entries[space]}`
  end
  page ..= "\n### Types\n\nTypes of settings are in [settings.md](settings.md).\n\n| type | fields |\n|---|---|\n"
  for _, named in docs.types do
    local fields = {}
    for _, field in named.fields do table.insert(fields, `\`{field.name}\``) end
    if #fields > 0 and not table.find(docs.tables, named.name) then
      page ..= `| \`{named.name}\`: {without_stop(named.doc)} | {table.concat(fields, ", ")} |\n`
    end
  end
  return page
end

--- Lines of comments.
local function comment(text) return "---" .. string.gsub(text, "\n", "\n---") .. "\n" end

--- A line without the spaces at its end.
local function line(text) return string.match(text, "^(.-)%s*$") .. "\n" end

--- The type of a parameter, with the fields of a table. `shown` gives a type in the syntax of
--- LuaCATS.
local function kind_of(param, shown)
  local kind = shown(param.type)
  if not param.fields then return kind end
  local fields = {}
  for _, field in param.fields do table.insert(fields, `{field.name}: {kind_of(field, shown)}`) end
  return (string.gsub(kind, "table", function() return `\{ {table.concat(fields, ", ")} }` end))
end

local function annotated(entry, shown)
  local page, names = comment(entry.doc), {}
  for _, param in entry.params do
    page ..= line(`---@param {param.name} {kind_of(param, shown)} {param.doc}`)
    table.insert(names, (string.match(param.name, "^(.-)%?*$")))
  end
  for _, result in entry.returns do
    local kind, doc = result[1], result[2]
    page ..= `---@return {shown(kind)}{if doc == "" then "" else " # " .. doc}\n`
  end
  return page .. `function {entry.name}({table.concat(names, ", ")}) end\n\n`
end

--- The types for lua-language-server.
function reference.luacats(docs, shown)
  local page = "---@meta\n-- Types of r1 for lua-language-server. Made by `r1 doc --format luacats`; changes here are lost.\n\n"
  local methods = {}
  for _, entry in docs.functions do
    if string.find(entry.name, ":", 1, true) then
      methods[entry.space] = (methods[entry.space] or "") .. annotated(entry, shown)
    end
  end
  for _, named in docs.types do
    page ..= comment(named.doc) .. `---@class r1.{named.name}\n`
    for _, field in named.fields do page ..= line(`---@field {field.name} {kind_of(field, shown)} {field.doc}`) end
    if table.find(docs.open, named.name) then page ..= "---@field [any] any\n" end
    page ..= if methods[named.name] then `local {named.name} = \{}\n\n{methods[named.name]}` else "\n"
  end
  page ..= "---Functions of the host.\nr1 = {}\n\n"
  local spaces = { "", "r1", "math", "os" }
  for _, entry in docs.functions do
    local space = entry.space
    if string.find(entry.name, ":", 1, true) then continue end
    if not table.find(spaces, space) then
      table.insert(spaces, space)
      if space ~= "io" then page ..= `{space} = \{}\n\n` end
    end
    -- The language server has Lua's own functions.
    if (space == "" and entry.scope ~= "tests") or table.find({ "math", "os", "io" }, space) then continue end
    if entry.value then
      page ..= `---{entry.doc}\n---@type {shown(entry.returns[1][1])}\n{entry.name} = nil\n\n`
    else
      page ..= annotated(entry, shown)
    end
  end
  return page
end

--- Tables of settings; every field may be left out.
function reference.types(tables)
  local page = ""
  for _, settings in tables do
    page ..= "\n" .. wrap("--- ", "--- ", settings.doc) .. `export type {settings.name} = \{\n`
    for _, field in settings.fields do
      page ..= wrap("  --- ", "  --- ", field.doc)
      local kind = if string.find(field.type, "|", 1, true) then `({field.type})` else field.type
      page ..= `  {field.name}: {kind}?,\n`
    end
    page ..= "}\n"
  end
  return page
end

return reference
