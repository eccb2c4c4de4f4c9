--- A generated knowledge base with questions of two hops, for scripts/search_qa.lua: a page for
--- each part of a warehouse, which names its order, and a page for each order, which names a shelf.
--- Names are numbers, which r1-nano can copy.

local PARTS = 400
-- Questions about the last parts are held out.
local HELD_OUT = 80

-- Different numbers of so many digits, in random order. Luau's `math.random` has the same seed at
-- each load of the script.
local function numbers(count, low, high)
  local all, chosen = {}, {}
  for number = low, high do all[#all + 1] = number end
  for place = 1, count do
    local index = math.random(place, #all)
    chosen[place] = all[index]
    all[index] = all[place]
  end
  return chosen
end

local parts, orders = numbers(PARTS, 1000, 9999), numbers(PARTS, 100, 999)
local passages, facts = {}, {}
for place = 1, PARTS do
  local fact = { part = parts[place], order = orders[place], shelf = math.random(10, 99) }
  facts[place] = fact
  fact.pages = {
    { title = `Part {fact.part}`, text = `It is in order {fact.order}.` },
    { title = `Order {fact.order}`, text = `Order {fact.order} is on shelf {fact.shelf}.` },
  }
  r1.push(passages, fact.pages[1])
  r1.push(passages, fact.pages[2])
end

local function row(place)
  local fact = facts[place]
  return {
    question = `Which shelf has part {fact.part}?`,
    answer = tostring(fact.shelf),
    supporting_facts = { title = { fact.pages[1].title, fact.pages[2].title } },
    fact = fact,
  }
end

local knowledge = { passages = passages }

--- A question for training.
function knowledge.train() return row(math.random(PARTS - HELD_OUT)) end

--- A question about parts that no training question names.
function knowledge.held_out() return row(math.random(PARTS - HELD_OUT + 1, PARTS)) end

return knowledge
