--- Search tools over passages in memory: `require("@r1/search")`. Indexes on disk and servers have
--- r1.tools.search (docs/guide/search.md), whose results have the same form.

local check = require("@r1/options")

local search = {}

--- The hits as the policy reads them, a line per passage, as r1.tools.search writes them.
function search.text(passages)
  local lines = {}
  for rank, passage in ipairs(passages) do
    local title = passage.title or ""
    lines[rank] = title == "" and `Doc {rank}: {passage.text}` or `Doc {rank}(Title: {title}) {passage.text}`
  end
  return #lines == 0 and "No passage was found." or table.concat(lines, "\n")
end

--- A tool with the parameter `query` over a list of passages `{ title =, text = }`, or a resource
--- with these columns: the `k` (3) best by BM25 over title and text (r1.text.index).
---
--- Call it at the top of the script. Options: `k`, `name` ("search"), `description`, `found`: a
--- function `(passages, call)` that is called with the hits, for example to keep their titles in
--- `call.state`.
function search.tool(passages, options)
  local given = check("search.tool", options, { "k", "name", "description", "found" })
  local texts = {}
  for index, passage in passages do
    if type(passage) ~= "table" or type(passage.text) ~= "string" then
      error(`search.tool: passage {index} has no \`text\``, 2)
    end
    texts[index] = `{passage.title or ""} {passage.text}`
  end
  local index = r1.text.index(texts)
  return r1.tool {
    name = given.name or "search",
    description = given.description or "Searches a collection of passages and returns the best ones.",
    parameters = { query = { type = "string", description = "What to search for" } },
    run = function(arguments, call)
      if not string.find(arguments.query, "%S") then return nil, "the query is empty" end
      local hits = {}
      for rank, hit in ipairs(index:search(arguments.query, given.k or 3)) do hits[rank] = passages[hit.index] end
      if given.found then given.found(hits, call) end
      return search.text(hits)
    end,
  }
end

--- The share of titles that results of searches among the messages show (`Doc 1(Title: …)`); 0
--- without titles.
function search.recall(messages, titles)
  local seen = 0
  for _, title in ipairs(titles) do
    for _, message in ipairs(messages) do
      if message.role == "tool" and string.find(message.content, `(Title: {title}) `, 1, true) then
        seen += 1
        break
      end
    end
  end
  return #titles > 0 and seen / #titles or 0
end

return search
