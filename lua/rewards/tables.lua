--- Rewards for questions over tables, after TableMind (arXiv:2509.06278): a reply ends with a JSON
--- list of answers, and a correct answer earns more with a successful call and few steps.

local check = require("@r1/options")
local compare = require("@r1/rewards/compare")

local tables = {}

--- The list after the last "```json" of a reply: `{"answer": ["…"]}`. Nil without one. Numbers in
--- the list are accepted.
function tables.json_answer(text)
  local last
  for block in string.gmatch(text or "", "```json%s*(.-)```") do last = block end
  local value = last and r1.json.decode(last)
  local list = type(value) == "table" and value.answer
  if type(list) ~= "table" or #list == 0 then return nil end
  local answers = {}
  for place, item in ipairs(list) do
    if type(item) ~= "string" and type(item) ~= "number" then return nil end
    answers[place] = tostring(item)
  end
  return answers
end

--- 1 if a reply is `<think>…</think>`, followed by a JSON block with `answer`.
---
--- Gamed by: an empty `<think></think>`.
function tables.json_format(text)
  local rest = string.match(text or "", "^%s*<think>.-</think>(.*)$")
  return rest and tables.json_answer(rest) and 1 or 0
end

local function same(a, b, tolerance)
  local x, y = compare.number(a), compare.number(b)
  if type(x) == "number" and type(y) == "number" then return math.abs(x - y) <= tolerance end
  if x and y then return x == y end
  local function plain(text) return (string.gsub(r1.text.lower(tostring(text)), "^%s*(.-)%s*$", "%1")) end
  return plain(a) == plain(b)
end

--- 1 if two lists have the same values as multisets. Numbers are compared with an absolute
--- tolerance (`options.tolerance`, 0.01), others without case and outer spaces.
---
--- Gamed by: nothing known; additional values make the lists differ.
function tables.multiset_match(values, references, options)
  local tolerance = check("multiset_match", options, { "tolerance" }).tolerance or 0.01
  r1.reference(references, "multiset_match")
  if values == nil or #values ~= #references then return 0 end
  local used = {}
  for _, value in ipairs(values) do
    local found
    for place, reference in ipairs(references) do
      if not found and not used[place] and same(value, reference, tolerance) then found = place end
    end
    if not found then return 0 end
    used[found] = true
  end
  return 1
end

--- What a correct answer earns for how it was found: `exp(-decay * steps) * (tool - cost *
--- steps^2)`, with `tool` only after a successful call.
---
--- `options`: `steps` (replies of the trajectory) and `successes` (successful calls) are required;
--- `decay` (0.015), `tool` (0.5), `cost` (0.01). Add it only if the answer is right.
---
--- Gamed by: one call whose result is not used.
function tables.efficiency(options)
  options = check("efficiency", options, { "steps", "successes", "decay", "tool", "cost" })
  local earned = options.successes > 0 and (options.tool or 0.5) or 0
  return math.exp(-(options.decay or 0.015) * options.steps) * (earned - (options.cost or 0.01) * options.steps ^ 2)
end

return tables
