--- A small generated collection of papers for scripts/paperscout.lua. A topic has three papers with
--- its name in the title and three that only these cite, so that a search finds the first and an
--- expansion the others.

local AREAS = { "cards", "books", "lamps", "pens", "rings", "seeds", "eggs", "boxes" }
local KINDS = { "counting", "sorting", "selling", "packing" }

local corpus, topics = {}, {}

for _, area in ipairs(AREAS) do
  for _, kind in ipairs(KINDS) do
    local topic = { name = `{kind} {area}`, answers = {} }
    for part = 1, 3 do
      local id, cited = tostring(#corpus + 101), tostring(#corpus + 102)
      r1.push(corpus, { id = id, title = `On {kind} {area}, part {part}`, references = { cited } })
      r1.push(corpus, { id = cited, title = `Foundations {#corpus + 1}`, references = {} })
      r1.push(topic.answers, id)
      r1.push(topic.answers, cited)
    end
    topics[#topics + 1] = topic
  end
end

local library = { corpus = corpus }

--- A query with the ids of the papers that it wants.
function library.row()
  local topic = topics[math.random(#topics)]
  return { query = `Find papers about {topic.name}.`, answers = topic.answers, topic = topic.name }
end

return library
