--- The pages of r1 doc: a function, a type, a module, settings, lists.

local formats = ...

--- Columns of a page, and of the types in the table of a function.
local WIDTH, TYPES = 100, 28

local function pad(text, width) return text .. string.rep(" ", math.max(width - utf8.len(text), 0)) end

--- A line without the spaces at its end.
local function line(text) return string.match(text, "^(.-)%s*$") .. "\n" end

local function widest(rows, column)
  local width = 0
  for _, row in rows do width = math.max(width, utf8.len(row[column])) end
  return width
end

--- A paragraph as lines that begin with two spaces.
local function wrapped(paragraph)
  local text, column, is_first = "  ", 2, true
  for word in string.gmatch(paragraph, "%S+") do
    local length = utf8.len(word)
    if is_first then
      is_first = false
    elseif column + 1 + length > WIDTH then
      text ..= "\n  "
      column = 2
    else
      text ..= " "
      column += 1
    end
    text ..= word
    column += length
  end
  return text .. "\n"
end

--- A text as lines that begin with two spaces. Paragraphs and indented lines stay apart.
local function wrap(text)
  local page = ""
  for index, paragraph in string.split(text, "\n") do
    if paragraph == "" and index > 1 then
      page ..= "\n"
    elseif string.sub(paragraph, 1, 1) == " " then
      page ..= `  {paragraph}\n`
    else
      page ..= wrapped(paragraph)
    end
  end
  return page
end

--- Parameters and their fields as rows of name, type and description.
local function rows_of(params, depth, rows)
  for _, param in params do
    table.insert(rows, { string.rep("  ", depth) .. param.name, param.type, param.doc })
    rows_of(param.fields or {}, depth + 1, rows)
  end
  return rows
end

local function table_of(rows, limit)
  local names, types, text = widest(rows, 1), math.min(widest(rows, 2), limit), ""
  for _, row in rows do text ..= line(`  {pad(row[1], names)}  {pad(row[2], types)}  {row[3]}`) end
  return text
end

local ONLY = { anywhere = "", programs = "; in programs (r1 lua) only", tests = "; in tests (r1 test) only" }

local function entry(it)
  local page = `{it.signature}\n\n{wrap(it.doc)}`
  local rows = rows_of(it.params, 0, {})
  local types = math.min(widest(rows, 2), TYPES)
  local says_more, explains_results = false, false
  for _, row in rows do says_more = says_more or row[2] ~= "" or row[3] ~= "" end
  for _, result in it.returns do explains_results = explains_results or result[2] ~= "" end
  if says_more then page ..= "\n" .. table_of(rows, TYPES) end
  if explains_results and not it.value then
    page ..= "\n  returns\n"
    for _, result in it.returns do
      page ..= line(`    {pad(result[1], types)}  {result[2]}`)
    end
  end
  if it.example ~= "" then
    local example = string.gsub(it.example, "\n", "\n    ")
    page ..= `\n  example\n    {example}\n`
  end
  return page .. `\n  since {it.since}{ONLY[it.scope]}\n`
end

--- A line for each entry, by namespace.
local function list(entries)
  local width, text, space = 0, "", nil
  for _, it in entries do width = math.max(width, #it.name) end
  for _, it in entries do
    if space ~= nil and space ~= it.space then text ..= "\n" end
    space = it.space
    text ..= `{pad(it.name, width)}  {it.summary}\n`
  end
  return text
end

--- A module: its description, the function that it returns, and the functions in its folder.
local function module(it)
  local page = `require("{it.name}")\n\n{wrap(it.doc)}`
  local others = {}
  for _, other in it.entries do
    if other.name == it.name then
      page ..= `\n  returns a function: {string.sub(other.signature, #it.name + 1)}\n`
      if other.doc ~= it.doc then page ..= "\n" .. wrap(other.doc) end
    end
  end
  for _, other in it.all do
    if other.name ~= it.name then table.insert(others, other) end
  end
  return if #others > 0 then `{page}\n{list(others)}` else page
end

local function type_of(it)
  return `{it.name}\n\n{wrap(it.doc)}\n{table_of(rows_of(it.fields, 0, {}), math.huge)}`
end

local function name_of(setting)
  return if setting.only == "" then setting.path else `{setting.path} ({setting.only})`
end

local function default_of(setting) return if setting.default == "null" then "none" else setting.default end

--- A setting in full; two trainers may have one of this name.
local function setting_pages(settings)
  local pages = {}
  for _, it in settings do
    local page = `{name_of(it)}\n\n{wrap(it.doc)}\n`
    for _, row in {
      { "type", it.type },
      { "unit", it.unit },
      { "range", it.range },
      { "default", default_of(it) },
      { "needs", it.needed },
      { "changes", it.changes },
    } do
      if row[2] ~= "" then page ..= `  {pad(row[1], 8)} {row[2]}\n` end
    end
    table.insert(pages, page)
  end
  return table.concat(pages, "\n")
end

local function settings(all)
  local rows, is_one = {}, true
  for _, it in all do
    table.insert(rows, { name_of(it), default_of(it), it.doc })
    is_one = is_one and it.path == all[1].path
  end
  if is_one then return setting_pages(all) end
  local names, defaults, page = widest(rows, 1), math.min(widest(rows, 2), 12), ""
  for _, row in rows do
    page ..= `{pad(row[1], names)}  {pad(row[2], defaults)}  {row[3]}\n`
  end
  return page
end

--- The values of a setting: names with a declaration of their own.
local function values(rows)
  local width, page = widest(rows, 1), "\n"
  for _, row in rows do page ..= `  {pad(row[1], width)}  {row[2]}\n` end
  return page .. "\nTables with options: docs/reference/algorithms.md\n"
end

local function everything(result)
  return list(result.functions)
    .. "\nModules: require(NAME), r1 doc NAME\n\n"
    .. list(result.modules)
    .. "\nSettings: r1 doc SECTION (policy, data, sampling, env, rollout, trainer, eval, checkpoint, limits)\n"
end

--- The parts of a page that a name has.
return function(result)
  local page = ""
  if result.everything then page ..= everything(result.everything) end
  if result.entry then page ..= entry(result.entry) end
  if result.list then page ..= list(result.list) end
  if result.module then page ..= module(result.module) end
  if result.type then page ..= type_of(result.type) end
  if result.settings then page ..= settings(result.settings) end
  if result.values then page ..= values(result.values) end
  if result.also then page ..= `\nsettings\n\n{settings(result.also)}` end
  if result.algorithm then page ..= `\nalgorithm\n\n{result.algorithm}` end
  return page
end
