--- A small shop in text, in the manner of WebShop (arXiv:2207.01206), which stands in for its
--- server: pages, the actions search[words] and click[value], and WebShop's reward.

local THINGS = { "books", "cards", "eggs", "lamps", "pens", "rings", "seeds", "boxes" }
local COLOURS = { "red", "blue", "green" }
local SIZES = { "small", "large" }
--- Products on a page of results.
local SHOWN = 3

-- Each thing in each size, at two prices. Luau's `math.random` has the same seed at each load.
local products, by_code = {}, {}
for number, thing in ipairs(THINGS) do
  for place = 0, 3 do
    local product = {
      code = `b{10 * number + place}`, thing = thing, size = SIZES[place % 2 + 1],
      price = place < 2 and math.random(10, 49) or math.random(50, 89),
    }
    products[#products + 1] = product
    by_code[product.code] = product
  end
end

local shop = { products = products }

--- A task: a thing of a size in a colour, at most at a price, a product that has all of it, and the
--- first action, which `r1 check` replies.
function shop.row()
  local product = products[math.random(#products)]
  local colour, below = COLOURS[math.random(#COLOURS)], product.price < 50 and 50 or 90
  return {
    question = `Buy {product.size} {product.thing} with color: {colour}, and price lower than {below} dollars`,
    goal = { thing = product.thing, size = product.size, color = colour, below = below },
    product = product.code,
    answer = `search[{product.size} {product.thing}]`,
  }
end

--- The values that can be clicked on the page, in their order.
function shop.clickable(visit)
  if visit.page == "search" or visit.page == "done" then return {} end
  if visit.page == "results" then
    local values = { "back to search" }
    if visit.from + SHOWN <= #visit.found then r1.push(values, "next >") end
    if visit.from > 1 then r1.push(values, "< prev") end
    for place = visit.from, math.min(visit.from + SHOWN - 1, #visit.found) do r1.push(values, visit.found[place]) end
    return values
  end
  local values = { "back to search", "< prev" }
  for _, colour in ipairs(COLOURS) do r1.push(values, colour) end
  r1.push(values, "buy now")
  return values
end

--- The text of the page.
function shop.text(visit)
  if visit.page == "done" then return "Thank you for shopping with us!" end
  local lines = { "Instruction: " .. visit.instruction }
  if visit.page == "search" then
    r1.push(lines, "Search")
  elseif visit.page == "results" then
    r1.push(lines, `Results: {#visit.found}`)
    for place = visit.from, math.min(visit.from + SHOWN - 1, #visit.found) do
      local product = by_code[visit.found[place]]
      r1.push(lines, `{product.code}: {product.size} {product.thing}, {product.price} dollars`)
    end
  else
    local product = by_code[visit.product]
    r1.push(lines, `{product.size} {product.thing}, {product.price} dollars`)
    if visit.color then r1.push(lines, "color: " .. visit.color) end
  end
  return table.concat(lines, " [SEP] ")
end

--- A page with what can be clicked there.
function shop.page(text, values)
  return if #values > 0 then `{text}\nclick: {table.concat(values, ", ")}` else text
end

--- The last action in a reply, or nil.
function shop.action(text)
  local found
  for name, value in string.gmatch(text, "(%l+)%[([^%]\n]+)%]") do
    if name == "search" or name == "click" then found = `{name}[{value}]` end
  end
  return found
end

--- The state of a visit to the shop.
function shop.visit(task) return { page = "search", instruction = task.question } end

-- Products by the number of words that they share with the query.
local function find(query)
  local words = {}
  for word in string.gmatch(string.lower(query), "%w+") do words[word] = true end
  local found = {}
  for place, product in ipairs(products) do
    local score = (words[product.thing] and 2 or 0) + (words[product.size] and 1 or 0)
    if words[product.thing] then found[#found + 1] = { code = product.code, score = score, place = place } end
  end
  table.sort(found, function(a, b)
    if a.score ~= b.score then return a.score > b.score end
    return a.place < b.place
  end)
  local codes = {}
  for place, one in ipairs(found) do codes[place] = one.code end
  return codes
end

-- WebShop's reward: the share of attribute, option and price that the bought product has, and 0 for
-- another kind of thing.
local function score(visit, goal)
  local product = by_code[visit.product]
  if product.thing ~= goal.thing then return 0 end
  local hits = 0
  if product.size == goal.size then hits += 1 end
  if visit.color == goal.color then hits += 1 end
  if product.price <= goal.below then hits += 1 end
  return hits / 3
end

--- The actions of a customer who buys the product of a task; `wrong` has the probabilities of a
--- random colour and of a random product among the results.
function shop.plan(task, wrong)
  local goal, code = task.goal, task.product
  local query = `{goal.size} {goal.thing}`
  if math.random() < wrong.product then code = find(query)[math.random(SHOWN)] end
  local colour = math.random() < wrong.colour and COLOURS[math.random(#COLOURS)] or goal.color
  return { `search[{query}]`, `click[{code}]`, `click[{colour}]`, "click[buy now]" }
end

--- Changes the visit by an action: the reward, and whether the visit is over. As in WebShop, an
--- action that the page doesn't have changes nothing.
function shop.act(visit, task, action)
  local query = string.match(action, "^search%[(.+)%]$")
  if query and visit.page == "search" then
    visit.page, visit.found, visit.from = "results", find(query), 1
    return 0, false
  end
  local value = string.lower(string.match(action, "^click%[(.+)%]$") or "")
  if not table.find(shop.clickable(visit), value) then return 0, false end
  if value == "buy now" then
    visit.page = "done"
    return score(visit, task.goal), true
  elseif value == "back to search" then
    visit.page, visit.product, visit.color = "search", nil, nil
  elseif value == "next >" then
    visit.from += SHOWN
  elseif value == "< prev" and visit.page == "results" then
    visit.from -= SHOWN
  elseif value == "< prev" then
    visit.page, visit.product, visit.color = "results", nil, nil
  elseif by_code[value] then
    visit.page, visit.product = "product", value
  else
    visit.color = value
  end
  return 0, false
end

return shop
