--- A generated knowledge base with questions of two hops, for scripts/search_qa.lua: a page for
--- each lot of a warehouse, which names its order, and a page for each order, which names a shelf.
--- The words and the numbers of two digits are those that r1-nano can copy.

local THINGS = { "apples", "books", "cards", "eggs", "lamps", "pens", "rings", "seeds" }
local NAMES = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }
local LOTS = 400
-- Questions about the last lots are held out.
local HELD_OUT = 80

-- All pairs of a word and a number, in random order. Luau's `math.random` has the same seed at each
-- load of the script.
local function pairs_of(words)
  local all = {}
  for _, word in ipairs(words) do
    for number = 10, 99 do all[#all + 1] = `{word} {number}` end
  end
  for place = 1, #all do
    local index = math.random(place, #all)
    all[place], all[index] = all[index], all[place]
  end
  return all
end

local function fact_of(lot, order)
  local shelf = `shelf {math.random(10, 99)}`
  return {
    lot = lot, order = order, shelf = shelf,
    pages = { { title = lot, text = `{lot}: order {order}.` }, { title = order, text = `{order}: {shelf}.` } },
  }
end

local lots, orders = pairs_of(THINGS), pairs_of(NAMES)
local passages, facts = {}, {}
for place = 1, LOTS do
  local fact = fact_of(lots[place], orders[place])
  facts[place] = fact
  r1.push(passages, fact.pages[1])
  r1.push(passages, fact.pages[2])
end

local function row(fact)
  return {
    question = `Where is {fact.lot}?`,
    answer = fact.shelf,
    supporting_facts = { title = { fact.pages[1].title, fact.pages[2].title } },
    fact = fact,
  }
end

local knowledge = { passages = passages, train_count = 20000, held_out_count = 128 }

--- A question for training.
function knowledge.train() return row(facts[math.random(LOTS - HELD_OUT)]) end

--- A question about lots that no training question names.
function knowledge.held_out() return row(facts[math.random(LOTS - HELD_OUT + 1, LOTS)]) end

--- A question about a fact that is in no page, for demonstrations: they teach how to search, and
--- not what the pages say.
function knowledge.invented() return row(fact_of(lots[math.random(#lots)], orders[math.random(#orders)])) end

return knowledge
