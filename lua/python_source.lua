--- Functions of a Python file, read from its text: `require("@r1/python_source")`
--- (docs/guide/python.md).
---
--- Only the signatures and docstrings of functions at the top level are read. No Python runs, so
--- that a script loads, and a stored run is replayed, without it.

--- Types of Python as types of a JSON schema.
local TYPES = {
  str = "string", int = "integer", float = "number", bool = "boolean", None = "null",
  list = "array", List = "array", tuple = "array", Tuple = "array", set = "array", Set = "array",
  Sequence = "array", Iterable = "array", dict = "object", Dict = "object", Mapping = "object",
}
local CONSTANTS = { True = true, False = false }
--- Sections of a docstring that end its description.
local SECTIONS = {
  args = "parameters", arguments = "parameters", parameters = "parameters", params = "parameters",
  returns = "other", ["return"] = "other", yields = "other", raises = "other", example = "other",
  examples = "other", note = "other", notes = "other",
}

local function trim(text) return (string.match(text, "^%s*(.-)%s*$")) end

--- The place behind the string literal that begins at `at`.
local function behind_string(text, at)
  local quote = string.sub(text, at, at)
  if string.sub(text, at, at + 2) == string.rep(quote, 3) then quote = string.rep(quote, 3) end
  local place = at + #quote
  while place <= #text do
    if string.sub(text, place, place + #quote - 1) == quote then return place + #quote end
    place += if string.sub(text, place, place) == "\\" then 2 else 1
  end
  return place
end

--- The place of the first of the characters `stops` outside of brackets, strings and comments.
local function find(text, at, stops)
  local depth = 0
  while true do
    local place = string.find(text, "[\"'#%(%)%[%]{}:,=|]", at)
    if not place then return nil end
    local character = string.sub(text, place, place)
    if depth == 0 and string.find(stops, character, 1, true) then return place end
    at = place + 1
    if character == "#" then
      at = string.find(text, "\n", at, true) or #text + 1
    elseif character == '"' or character == "'" then
      at = behind_string(text, place)
    elseif string.find("([{", character, 1, true) then
      depth += 1
    elseif string.find(")]}", character, 1, true) then
      depth -= 1
    end
  end
end

--- The parts of `text` between the separators.
local function split(text, separator)
  local parts, from = {}, 1
  while true do
    local place = find(text, from, separator)
    local part = trim(string.gsub(string.sub(text, from, (place or #text + 1) - 1), "#[^\n]*", ""))
    if part ~= "" then parts[#parts + 1] = part end
    if not place then return parts end
    from = place + 1
  end
end

--- A literal: text, a number, true or false.
local function constant(text)
  local quoted = string.match(text, '^"([^"\\]*)"$') or string.match(text, "^'([^'\\]*)'$")
  if quoted ~= nil then return quoted end
  if CONSTANTS[text] ~= nil then return CONSTANTS[text] end
  return tonumber(text)
end

local source = {}

local function any_of(types)
  local schemas = {}
  for _, one in ipairs(types) do
    if one ~= "None" then
      local schema, unknown = source.schema_of(one)
      if not schema then return nil, unknown end
      schemas[#schemas + 1] = schema
    end
  end
  return if #schemas == 1 then schemas[1] else { anyOf = schemas }
end

--- The JSON schema of a type hint, or nil and the part without one.
function source.schema_of(hint)
  local quoted = constant(hint)
  if type(quoted) == "string" then hint = trim(quoted) end
  local types = split(hint, "|")
  if #types > 1 then return any_of(types) end
  local name, inner = string.match(hint, "^([%w_%.]+)%s*%[(.*)%]$")
  name = string.match(name or hint, "([%w_]+)$") or ""
  local parts = split(inner or "", ",")
  if name == "Any" or name == "object" then return {} end
  if name == "Optional" or name == "Union" then return any_of(parts) end
  if name == "Annotated" then
    local schema, unknown = source.schema_of(parts[1] or "")
    local about = constant(parts[2] or "")
    if schema and type(about) == "string" then schema.description = about end
    return schema, unknown
  end
  if name == "Literal" then
    local values = {}
    for _, part in ipairs(parts) do
      local value = constant(part)
      if value == nil then return nil, part end
      values[#values + 1] = value
    end
    return { type = type(values[1]) == "string" and "string" or nil, enum = values }
  end
  local kind = TYPES[name]
  if not kind then return nil, hint end
  local schema = { type = kind }
  local item = if kind == "object" then parts[2] else parts[1]
  if inner and item and item ~= "..." and (kind == "array" or kind == "object") then
    local items, unknown = source.schema_of(item)
    if not items then return nil, unknown end
    if next(items) ~= nil then schema[if kind == "array" then "items" else "additionalProperties"] = items end
  end
  return schema
end

--- The parameters between the brackets: name, hint, and whether there is a default.
local function parameters_of(text)
  local found = {}
  for _, part in ipairs(split(text, ",")) do
    local stars, name, rest = string.match(part, "^(%**)%s*([%a_]?[%w_]*)%s*(.*)$")
    if name ~= "" and stars ~= "**" then
      local default = find(rest, 1, "=")
      local hint = string.match(string.sub(rest, 1, (default or #rest + 1) - 1), "^:%s*(.-)%s*$")
      found[#found + 1] = { name = name, hint = hint, optional = default ~= nil, rest = stars == "*" }
    end
  end
  return found
end

--- The lines of a docstring without their common indentation.
local function lines_of(text)
  local lines, common = string.split(string.gsub(text, "\t", "    "), "\n"), nil
  for place = 2, #lines do
    local indent = string.match(lines[place], "^( *)%S")
    if indent and (not common or #indent < common) then common = #indent end
  end
  for place, line in ipairs(lines) do
    lines[place] = if place == 1 then trim(line) else (string.gsub(string.sub(line, (common or 0) + 1), "%s+$", ""))
  end
  return lines
end

--- The description of a docstring, and the descriptions of parameters by name: the styles of
--- Google, NumPy and Sphinx.
local function documented(text)
  local about, parameters = {}, {}
  local lines, section, current, level = lines_of(text), "description", nil, nil
  for place, line in ipairs(lines) do
    local underlined = string.find(lines[place + 1] or "", "^%-%-%-+$") ~= nil
    local title = string.match(line, "^(%a+):?$")
    local known = title and (underlined or string.sub(line, -1) == ":") and SECTIONS[string.lower(title)]
    local sphinx, said = string.match(line, "^:param%s+[^:]-([%w_]+)%s*:%s*(.*)$")
    local indent = #(string.match(line, "^ *"))
    if sphinx then
      section, current = "sphinx", sphinx
      parameters[current] = { said }
    elseif string.find(line, "^:%a") then
      section, current = "other", nil
    elseif known then
      section, current, level = known, nil, nil
    elseif section == "description" then
      about[#about + 1] = line
    elseif section == "parameters" and line ~= "" and not string.find(line, "^%-%-%-+$") then
      level = level or indent
      local name, rest = string.match(line, "^ *%**([%w_]+)%s*(.*)$")
      if indent == level and name then
        current = name
        -- NumPy's lines have the type; the description follows below.
        parameters[current] = { if level == 0 then "" else (string.match(rest, "^%b()%s*:%s*(.*)$") or string.match(rest, "^:%s*(.*)$") or "") }
      elseif current then
        table.insert(parameters[current], trim(line))
      end
    elseif section == "sphinx" and current and line ~= "" then
      table.insert(parameters[current], trim(line))
    end
  end
  for name, said in pairs(parameters) do parameters[name] = trim(table.concat(said, " ")) end
  return trim(table.concat(about, "\n")), parameters
end

--- The docstring of the function whose body begins at `at`.
local function docstring(text, at)
  at = string.find(text, "[^%s]", at)
  while at and string.sub(text, at, at) == "#" do
    at = string.find(text, "\n", at, true)
    at = at and string.find(text, "[^%s]", at)
  end
  local from, prefix = string.match(text, "^()([rRuU]?)[\"']", at or #text + 1)
  if not from then return "" end
  from += #prefix
  local past = behind_string(text, from)
  local width = if string.find(text, '^"""', from) or string.find(text, "^'''", from) then 3 else 1
  local content = string.sub(text, from + width, past - width - 1)
  return if string.lower(prefix) == "r" then content else (string.gsub(content, "\\([\"'\\])", "%1"))
end

--- The functions at the top level of a file, in order: `name`, `line`, `parameters` (`name`,
--- `hint`, `optional`), `description`, and `about`, the descriptions of parameters by name.
function source.functions(text)
  local found, at, line = {}, 1, 1
  text = string.gsub(text, "\r\n?", "\n")
  while at <= #text do
    local name, open = string.match(text, "^def[ \t]+([%a_][%w_]*)[^%(\n]*()%(", at)
    if not name then name, open = string.match(text, "^async[ \t]+def[ \t]+([%a_][%w_]*)[^%(\n]*()%(", at) end
    local past = at
    if name then
      local close = find(text, open + 1, ")")
      local colon = close and find(text, close + 1, ":")
      if not colon then break end
      local description, about = documented(docstring(text, colon + 1))
      local parameters = parameters_of(string.sub(text, open + 1, close - 1))
      found[#found + 1] = { name = name, line = line, parameters = parameters, description = description, about = about }
      past = colon + 1
    end
    -- The next line that does not begin inside a string.
    while true do
      local place = string.find(text, "[\n\"'#]", past)
      if not place then return found end
      local character = string.sub(text, place, place)
      if character == "\n" then past = place + 1 break end
      past = if character == "#" then (string.find(text, "\n", place, true) or #text + 1) else behind_string(text, place)
    end
    local _, breaks = string.gsub(string.sub(text, at, past - 1), "\n", "")
    at, line = past, line + breaks
  end
  return found
end

return source
