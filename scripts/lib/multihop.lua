--- Questions of several hops with their paragraphs (HotpotQA, 2WikiMultihopQA, MuSiQue) as a
--- knowledge base: `require("./lib/multihop")(file)`. The paragraphs of all questions are one
--- collection. Every fifth question is held out.

local demonstrations = require("@r1/demonstrations")
local search = require("@r1/search")
local tasks = require("@r1/tasks")

-- The supporting passages, and first the one whose title is in the question, which a solver can
-- search for before it has read anything.
local function hops(row)
  local first, others = {}, {}
  for _, passage in ipairs(tasks.passages(row)) do
    if passage.relevant then
      local named = string.find(string.lower(row.question), string.lower(passage.title), 1, true)
      table.insert(named and first or others, passage)
    end
  end
  for _, passage in ipairs(others) do table.insert(first, passage) end
  return first
end

return function(file)
  local rows = r1.resource(file)
  local multihop, train, held_out, seen = { passages = {} }, {}, {}, {}
  for index, row in rows do
    table.insert(index % 5 == 0 and held_out or train, row)
    for _, passage in ipairs(tasks.passages(row)) do
      -- Paragraphs of one page have the same title.
      local key = `{passage.title}\n{passage.text}`
      if not seen[key] then
        seen[key] = true
        table.insert(multihop.passages, { title = passage.title, text = passage.text })
      end
    end
  end

  multihop.train_count, multihop.held_out_count = #train, #held_out
  function multihop.train(index) return train[index] end
  function multihop.held_out(index) return held_out[index] end

  local texts = {}
  for place, passage in ipairs(multihop.passages) do texts[place] = `{passage.title} {passage.text}` end
  local index = r1.text.index(texts)

  -- The result of the search tool for a title.
  local function look_up(title, k)
    local hits = {}
    for rank, hit in ipairs(index:search(title, k)) do hits[rank] = multihop.passages[hit.index] end
    return search.text(hits)
  end

  --- A demonstration about a training question: a search for each supporting passage by its title,
  --- then the answer. `k` is the number of passages of a search. One in three answers after the
  --- first search.
  function multihop.demonstration(number, system, tools, k)
    local row = train[(number - 1) % #train + 1]
    local messages = { r1.user(row.question) }
    for place, passage in ipairs(hops(row)) do
      if place > 1 and math.random() < 0.33 then break end
      r1.push(messages, demonstrations.call("search", { query = passage.title }))
      r1.push(messages, demonstrations.result("search", look_up(passage.title, k)))
    end
    r1.push(messages, r1.assistant(`<answer>{tasks.references(row)[1]}</answer>`))
    return demonstrations.row(system, tools, messages)
  end

  return multihop
end
