--- The tool-call format of Search-R1 (arXiv:2503.09516): the policy writes `<search>query</search>`
--- and stops; the results follow in the same turn as `<information>…</information>`.

return r1.format {
  name = "search_r1",
  starts = { "<search>" },
  stop = { "</search>" },
  same_turn = true,
  parse = function(text)
    local calls = {}
    for query in text:gmatch("<search>(.-)</search>") do
      query = query:match("^%s*(.-)%s*$")
      table.insert(calls, query == "" and { error = "The search is empty." } or { name = "search", arguments = { query = query } })
    end
    if #calls == 0 and text:find("<search>", 1, true) then return nil, "<search> was not closed with </search>." end
    return calls
  end,
  write = function(calls)
    local texts = {}
    for _, call in ipairs(calls) do
      table.insert(texts, "<search>" .. tostring(call.arguments.query or "") .. "</search>")
    end
    return table.concat(texts, "\n")
  end,
  result = function(results)
    local texts = {}
    for _, result in ipairs(results) do table.insert(texts, result.content) end
    return "\n\n<information>" .. table.concat(texts, "\n") .. "</information>\n\n"
  end,
  schema = function()
    return "Write <search>words</search> to look something up; what is found follows as <information>…</information>."
  end,
}
