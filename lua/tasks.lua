--- Questions, reference answers and passages of dataset rows, by the column names of known
--- datasets.

local tasks = {}

--- The question of a row: `question`, `problem`, or the last user message of `prompt` (verl's
--- columns). The instructions that DAPO-Math-17k puts around each problem are removed.
function tasks.question(row)
  local text = row.question or row.problem or row.prompt
  if type(text) == "table" then
    local last
    for _, message in ipairs(text) do
      if message.role == "user" then last = message.content end
    end
    text = last
  end
  if type(text) ~= "string" then
    error("tasks.question: the row has no text in `question`, `problem` or `prompt`", 2)
  end
  local inner = string.match(text, "^Solve the following math problem step by step%.[^\n]*\n+(.-)\n+Remember to put your answer[^\n]*$")
  return inner or text
end

-- Adds a text, a number or a list of them.
local function add(list, value)
  if type(value) == "table" then
    for _, item in ipairs(value) do add(list, item) end
  elseif type(value) == "number" or (type(value) == "string" and string.find(value, "%S")) then
    list[#list + 1] = tostring(value)
  end
end

--- The reference answers of a row, of which any is right.
---
--- Columns: `answers`, `golden_answers` (FlashRAG), `answer` and `answer_aliases` (HotpotQA,
--- MuSiQue), `reward_model.ground_truth` (verl) and its `target` (Search-R1).
function tasks.references(row)
  local found = {}
  for _, name in ipairs { "answers", "golden_answers", "answer", "answer_aliases" } do add(found, row[name]) end
  if #found == 0 then
    local truth = (row.reward_model or {}).ground_truth
    add(found, type(truth) == "table" and truth.target or truth)
  end
  if #found == 0 then
    r1.reference(nil, "tasks.references: the row has no `answer`, `answers`, `golden_answers` or `reward_model.ground_truth`")
  end
  return found
end

-- The text of a passage: `text`, MuSiQue's `paragraph_text`, or sentences.
local function text_of(passage)
  local text = passage.text or passage.paragraph_text or passage.sentences
  return type(text) == "table" and table.concat(text) or text or ""
end

--- The passages that come with a row, as a list of `{ title =, text =, relevant = }`; empty if
--- there are none.
---
--- Columns: `paragraphs` (MuSiQue: `title`, `paragraph_text`, `is_supporting`) or `context`, as
--- lists of titles and sentences (HotpotQA on the Hub: `{ title =, sentences = }`), or as pairs
--- (HotpotQA, 2WikiMultihopQA: `{ title, { sentence, … } }`). `relevant` is nil without
--- `is_supporting` and `supporting_facts`.
function tasks.passages(row)
  local list, context = {}, row.context
  if type(row.paragraphs) == "table" then
    for _, passage in ipairs(row.paragraphs) do
      list[#list + 1] = { title = passage.title or "", text = text_of(passage), relevant = passage.is_supporting }
    end
  elseif type(context) == "table" and context.title then
    for index, title in ipairs(context.title) do
      list[index] = { title = title, text = text_of { sentences = context.sentences[index] } }
    end
  elseif type(context) == "table" then
    for index, pair in ipairs(context) do list[index] = { title = pair[1], text = text_of { sentences = pair[2] } } end
  end
  local titles = tasks.supporting_titles(row)
  for _, passage in ipairs(list) do
    if passage.relevant == nil and row.supporting_facts then passage.relevant = table.find(titles, passage.title) ~= nil end
  end
  return list
end

--- The titles of the passages that answer a question, without repetitions: `supporting_facts` (`{
--- title = { … } }`, or a list of `{ title, sentence }`), or the paragraphs with `is_supporting`.
function tasks.supporting_titles(row)
  local titles = {}
  local function take(title)
    if title ~= nil and not table.find(titles, title) then titles[#titles + 1] = title end
  end
  local facts = row.supporting_facts or {}
  for _, title in ipairs(facts.title or {}) do take(title) end
  for _, pair in ipairs(facts) do take(pair[1]) end
  for _, passage in ipairs(row.paragraphs or {}) do
    if passage.is_supporting then take(passage.title) end
  end
  return titles
end

return tasks
