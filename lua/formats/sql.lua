--- SQL in ReTool's tags: the policy writes `<code>SELECT …</code>` and stops; the result of the
--- tool `sql` (r1.tools.table) follows in the same turn as `<interpreter>…</interpreter>`.

return r1.format {
  name = "sql",
  starts = { "<code>" },
  stop = { "</code>" },
  same_turn = true,
  parse = function(text)
    local calls = {}
    for query in text:gmatch("<code>(.-)</code>") do
      query = query:match("^%s*(.-)%s*$")
      table.insert(calls, query == "" and { error = "The query is empty." } or { name = "sql", arguments = { sql = query } })
    end
    if #calls == 0 and text:find("<code>", 1, true) then return nil, "<code> was not closed with </code>." end
    return calls
  end,
  write = function(calls)
    local texts = {}
    for _, call in ipairs(calls) do
      table.insert(texts, `<code>{call.arguments.sql or ""}</code>`)
    end
    return table.concat(texts, "\n")
  end,
  result = function(results)
    local texts = {}
    for _, result in ipairs(results) do table.insert(texts, result.content) end
    return `<interpreter>{table.concat(texts, "\n")}</interpreter>`
  end,
  schema = function()
    return "Write <code>SELECT …</code> to query the table t; the result follows as <interpreter>…</interpreter>."
  end,
}
