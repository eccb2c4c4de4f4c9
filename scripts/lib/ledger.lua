--- A ledger of several pages, for scripts/deep_research.lua: every page says what one or two people
--- have, some pages also say who has the key, and the question is about the last of these entries.

local NAMES = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }
local ASKED = "Key"

local ledger = {}

local function show(entry)
  return entry[1] == ASKED and `Key {entry[2]}.` or `{entry[1]} has {entry[2]}.`
end

--- A task: `question`, `answer`, and its `pages` with their `entries` as `{ name, amount }`. An
--- entry of the key is on one of the first two pages and seldom on a later one, so that a window of
--- the last pages is not enough.
function ledger.row()
  local pages, answer = {}, nil
  local first, count = math.random(2), math.random(6, 8)
  for place = 1, count do
    local entries = { { NAMES[math.random(#NAMES)], math.random(10, 99) } }
    if place == first or place > first and math.random() < 0.15 then
      answer = NAMES[math.random(#NAMES)]
      table.insert(entries, math.random(2), { ASKED, answer })
    elseif math.random() < 0.7 then
      table.insert(entries, { NAMES[math.random(#NAMES)], math.random(10, 99) })
    end
    local texts = {}
    for index, entry in ipairs(entries) do texts[index] = show(entry) end
    pages[place] = { text = table.concat(texts, " "), entries = entries }
  end
  return { question = "What is the last entry of the key?", answer = `{ASKED} {answer}`, asked = ASKED, pages = pages }
end

-- The latest entry of a name on the pages `from` to `to` as text; nil without one.
local function latest(task, name, from, to)
  for place = to, from, -1 do
    for _, entry in ipairs(task.pages[place].entries) do
      if entry[1] == name then return show(entry) end
    end
  end
  return nil
end

-- An entry of these pages at random, as text.
local function any(task, from, to)
  local entries = task.pages[math.random(from, to)].entries
  local entry = entries[math.random(#entries)]
  return show(entry)
end

-- A summary of the pages `from` to `to` and an earlier summary. Half of them note the entry that
-- the question needs, the others one at random.
local function summary_of(task, request)
  local to = math.random(2, #task.pages)
  local from = math.random(math.max(1, to - 3), to)
  local earlier, known
  if from > 1 then
    known = latest(task, task.asked, 1, from - 1)
    earlier = math.random() < 0.7 and known or any(task, 1, from - 1)
    if earlier ~= known then known = nil end
  end
  local shown = {}
  for place = from, to do r1.push(shown, r1.user(task.pages[place].text)) end
  local right = latest(task, task.asked, from, to) or known or earlier
  local text = right ~= nil and math.random() < 0.5 and right or any(task, from, to)
  local messages = request(task.question, shown, earlier)
  r1.push(messages, r1.assistant(text))
  return { messages = messages }
end

-- A part of the conversation, which mostly ends with the answer, or with a request for the next
-- page. One in five answers is another entry of the last pages.
local function reading_of(task, system, title, last)
  local count = #task.pages
  local from = math.random() < 0.7 and math.random(count - 2, count) or math.random(count)
  local before = from > 1 and (latest(task, task.asked, 1, from - 1) or any(task, 1, from - 1))
  local question = before and `{task.question}\n\n{title}\n{before}` or task.question
  local messages = { r1.system(system), r1.user(question) }
  if not before then r1.push(messages, r1.assistant("next")) end
  for place = from, math.min(#task.pages, from + 2) do
    r1.push(messages, r1.user(task.pages[place].text))
    r1.push(messages, r1.assistant("next"))
  end
  if from + 2 < #task.pages then return { messages = messages } end
  local answer = math.random() < 0.8 and task.answer or string.match(any(task, from, #task.pages), "(.*)%.$")
  r1.push(messages, r1.user(last))
  r1.push(messages, r1.assistant(`<answer>{answer}</answer>`))
  return { messages = messages }
end

--- A function that makes demonstrations: parts of conversations, and summaries of which half are of
--- no use. `request(question, messages, earlier)` makes the prompt of a summary.
function ledger.demonstrations(system, request, title, last)
  return function()
    local task = ledger.row()
    if math.random() < 0.35 then return summary_of(task, request) end
    return reading_of(task, system, title, last)
  end
end

return ledger
