--- A small generated collection of papers for scripts/paperscout.lua. A topic has three papers with
--- its name in the title and three that only these cite, so that a search finds the first and an
--- expansion the others.

local corpus, topics = {}, {}

for number = 11, 42 do
  local topic = { name = `method {number}`, answers = {} }
  for part = 1, 3 do
    local id, cited = tostring(#corpus + 101), tostring(#corpus + 102)
    r1.push(corpus, { id = id, title = `On {topic.name}, part {part}`, references = { cited } })
    r1.push(corpus, { id = cited, title = `Foundations {cited}`, references = {} })
    r1.push(topic.answers, id)
    r1.push(topic.answers, cited)
  end
  topics[#topics + 1] = topic
end

local library = { corpus = corpus }

--- A query with the ids of the papers that it wants.
function library.row()
  local topic = topics[math.random(#topics)]
  return { query = `Find papers about {topic.name}.`, answers = topic.answers, topic = topic.name }
end

--- The next call of a reader: the topic first, then each found paper. With the probability that is
--- left it is another one, or none. None ends the search.
function library.plan(found, task, probability)
  local open, careful = {}, math.random() < probability
  for _, id in ipairs(found.order) do
    local leads = #found.found[id].references > 0 and not found.expanded[id]
    if leads or not careful then r1.push(open, id) end
  end
  if not careful and math.random() < 0.4 then return nil end
  local topic = careful and task.topic or topics[math.random(#topics)].name
  if #found.order == 0 or (not careful and math.random() < 0.3) then
    return { name = "search", arguments = { query = topic } }
  end
  if #open == 0 then return nil end
  return { name = "expand", arguments = { id = open[math.random(#open)] } }
end

return library
