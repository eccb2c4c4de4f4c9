--- Makes rows for scripts/tablemind.lua, with the columns `question`, `table` and `answers`, from
--- JSONL of WikiTableQuestions (questions that name a table in `table`, and a second file of tables
--- with `table`, `header` and `rows`) or of TabFact (`header`, `rows`, `statements`, and `labels`
--- with 1 for true). Without the second file, `-`. Rows go to standard output.
---
---   r1 lua scripts/lib/table_rows.lua wtq_questions.jsonl wtq_tables.jsonl > wtq.jsonl
---   r1 lua scripts/lib/table_rows.lua tabfact.jsonl - > tabfact_rows.jsonl

local from, tables_from = ...
if not tables_from then error("usage: r1 lua table_rows.lua ROWS.jsonl TABLES.jsonl|-", 0) end

local function rows(path, visit)
  for line in io.lines(path) do
    local row, why = r1.json.decode(line)
    if row == nil then error(`{path}: a line is not JSON: {why}`, 0) end
    visit(row)
  end
end

local function write(question, made, answers)
  io.write(r1.json.encode { question = question, table = { header = made.header, rows = made.rows }, answers = answers }, "\n")
end

local known = {}
if tables_from ~= "-" then
  rows(tables_from, function(made) known[made.table] = made end)
end
rows(from, function(row)
  if row.statements then
    for place, statement in ipairs(row.statements) do
      write(`Is this true, yes or no? {statement}`, row, { row.labels[place] == 1 and "yes" or "no" })
    end
    return
  end
  local made = known[row.table]
  if made == nil then error(`{from}: the table {tostring(row.table)} is not in {tables_from}`, 0) end
  write(row.question, made, row.answers)
end)
