--- Search over papers and their references, after PaperScout (arXiv:2601.10029):
--- `require("@r1/papers")`. Tools `search` and `expand`, and the list of found papers, expanded and
--- not, as the text of the next prompt. The state of a trajectory keeps what was found.

local check = require("@r1/options")

local papers = {}

-- Repetitions and invalid calls, and the costs of calls, as in the authors' code.
local COSTS = { search = 0.1, expand = 0.05, invalid = 0.5, best = 3 }

--- What a trajectory has found: keep it as `state.papers`. `relevant` are the ids that the task
--- wants.
function papers.start(relevant)
  local wanted = {}
  for _, id in ipairs(relevant) do wanted[tostring(id)] = true end
  return { wanted = wanted, found = {}, order = {}, expanded = {}, queries = {}, calls = {} }
end

-- Adds papers. Gives the new ones, and the reward: the relevant ones of the first `best` new
-- papers.
local function admit(found, list)
  local fresh, gain = {}, 0
  for _, paper in ipairs(list) do
    local id = tostring(paper.id)
    if not found.found[id] then
      found.found[id] = paper
      r1.push(found.order, id)
      r1.push(fresh, paper)
      if #fresh <= COSTS.best and found.wanted[id] then gain += 1 end
    end
  end
  return fresh, gain
end

--- The tools over a corpus, a list or resource of `{ id =, title =, abstract =, references = { id …
--- } }`. Each call has a process reward: 1 for each relevant paper among its first 3 new ones, less
--- 0.1 for a search, 0.05 for an expansion, or -0.5 for a repeated query, an id that no call has
--- found, and a second expansion.
---
--- Call it at the top of the script. Options: `k` (10), the papers that a search returns. The
--- second result has what the tools run, for demonstrations: `{ search = function(found, query),
--- expand = function(found, id) }`.
function papers.tools(corpus, options)
  local given = check("papers.tools", options, { "k" })
  local texts, by_id = {}, {}
  for place, paper in corpus do
    if type(paper) ~= "table" or paper.id == nil or type(paper.title) ~= "string" then
      error(`papers.tools: paper {place} has no \`id\` and \`title\``, 2)
    end
    texts[place] = `{paper.title} {paper.abstract or ""}`
    by_id[tostring(paper.id)] = place
  end
  local index = r1.text.index(texts)
  local function said(fresh)
    return #fresh == 1 and "1 new paper" or `{#fresh} new papers`
  end
  local function search(found, text)
    local query = r1.text.lower(text)
    if not string.find(query, "%S") then return nil, "the query is empty", -COSTS.invalid end
    if found.queries[query] then return nil, "this query was searched before", -COSTS.invalid end
    found.queries[query] = true
    local hits = {}
    for rank, hit in ipairs(index:search(query, given.k or 10)) do hits[rank] = corpus[hit.index] end
    local fresh, gain = admit(found, hits)
    r1.push(found.calls, `search "{text}": {said(fresh)}`)
    return said(fresh), gain - COSTS.search
  end
  local function expand(found, id)
    if not found.found[id] then return nil, "no paper with this id was found", -COSTS.invalid end
    if found.expanded[id] then return nil, "this paper was expanded before", -COSTS.invalid end
    found.expanded[id] = true
    local cited = {}
    for _, reference in ipairs(found.found[id].references or {}) do
      local place = by_id[tostring(reference)]
      if place then r1.push(cited, corpus[place]) end
    end
    local fresh, gain = admit(found, cited)
    r1.push(found.calls, `expand {id}: {said(fresh)}`)
    return said(fresh), gain - COSTS.expand
  end
  local tools = {
    r1.tool {
      name = "search", description = "Searches papers.", parameters = { query = "string" },
      run = function(arguments, call) return search(call.state.papers, arguments.query) end,
    },
    r1.tool {
      name = "expand", description = "Adds the references of a found paper.", parameters = { id = "string" },
      run = function(arguments, call) return expand(call.state.papers, arguments.id) end,
    },
  }
  return tools, { search = search, expand = expand }
end

--- The two lists and the calls so far. Options: `each` (10), the latest papers of each list;
--- `abstract` (2000), characters of an abstract.
function papers.text(found, options)
  local given = check("papers.text", options, { "each", "abstract" })
  local lists = { expanded = {}, open = {} }
  for place = #found.order, 1, -1 do
    local id = found.order[place]
    local list = found.expanded[id] and lists.expanded or lists.open
    if #list < (given.each or 10) then
      local abstract = r1.clip(found.found[id].abstract or "", given.abstract or 2000)
      table.insert(list, 1, abstract == "" and `[{id}] {found.found[id].title}` or `[{id}] {found.found[id].title}: {abstract}`)
    end
  end
  local function block(title, list) return title .. (#list > 0 and "\n" .. table.concat(list, "\n") or " none") end
  return table.concat({
    block("Expanded:", lists.expanded), block("Not expanded:", lists.open), block("Calls:", found.calls),
  }, "\n")
end

--- Recall and precision of what was found.
function papers.quality(found)
  local right, wanted = 0, 0
  for id in pairs(found.wanted) do
    wanted += 1
    if found.found[id] then right += 1 end
  end
  return wanted > 0 and right / wanted or 0, #found.order > 0 and right / #found.order or 0
end

return papers
