--- A generated knowledge base with questions of two hops, for scripts/search_qa.lua: a page for each
--- work, which names its maker, and a page for each maker, which names two towns. Names are made of
--- syllables, so that no model has seen them.

local CONSONANTS, VOWELS = string.split("b d f g k l m n p r s t v z", " "), string.split("a e i o u", " ")
local KINDS = {
  { kind = "film", maker = "director" }, { kind = "book", maker = "author" }, { kind = "song", maker = "singer" },
}
local WORKS, TOWNS = 300, 60
-- Questions about the last works are held out.
local HELD_OUT = 60

local used = {}

-- A new name; Lua of r1 seeds `math.random` equally for each load of a script.
local function name()
  while true do
    local text = ""
    for _ = 1, 2 do text ..= CONSONANTS[math.random(#CONSONANTS)] .. VOWELS[math.random(#VOWELS)] end
    text = string.upper(string.sub(text, 1, 1)) .. string.sub(text, 2)
    if not used[text] then
      used[text] = true
      return text
    end
  end
end

local function names(count)
  local list = {}
  for place = 1, count do list[place] = name() end
  return list
end

local works, makers, towns = names(WORKS), names(WORKS), names(TOWNS)
local passages, facts = {}, {}
for place = 1, WORKS do
  local fact = {
    work = works[place], maker = makers[place], kind = KINDS[math.random(#KINDS)],
    born = towns[math.random(TOWNS)], lives = towns[math.random(TOWNS)],
  }
  facts[place] = fact
  r1.push(passages, { title = fact.work, text = `A {fact.kind.kind} by {fact.maker}.` })
  r1.push(passages, { title = fact.maker, text = `Born in {fact.born}, lives in {fact.lives}.` })
end

local function row(place)
  local fact, born = facts[place], math.random() < 0.5
  return {
    question = born and `Where was the {fact.kind.maker} of {fact.work} born?` or `Where does the {fact.kind.maker} of {fact.work} live?`,
    answer = born and fact.born or fact.lives,
    supporting_facts = { title = { fact.work, fact.maker } },
    fact = fact,
  }
end

local knowledge = { passages = passages, towns = towns }

--- A question for training.
function knowledge.train() return row(math.random(WORKS - HELD_OUT)) end

--- A question about works that no training question names.
function knowledge.held_out() return row(math.random(WORKS - HELD_OUT + 1, WORKS)) end

return knowledge
