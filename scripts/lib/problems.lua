--- Arithmetic problems for an interpreter, generated from a random stream. Each returns { problem,
--- answer, plan }, where `plan` lists the programs of a good solver with the results of the
--- interpreter; `prelude` defines variables in the interpreter whose values a solver can only find
--- by printing them.

local names = { "Ana", "Bo", "Cleo", "Dev", "Eli", "Finn", "Gus", "Hana" }
local things = { "apples", "books", "cards", "eggs", "lamps", "pens", "rings", "seeds" }
local places = { "boxes", "shelves", "crates", "bags" }

local function pick(list) return list[math.random(#list)] end
local function two_digits() return math.random(12, 98) end
--- Large enough for a product of four digits, too many to guess.
local function factor() return math.random(32, 98) end

--- A name that occurs nowhere else in the problem, with an irrelevant number.
local function distractor(thing)
  if math.random() < 0.5 then return "" end
  return string.format(" %s is %d years old.", pick(names), two_digits())
end

local shapes = {}

--- One product, sometimes with an irrelevant number.
function shapes.product()
  local n, each, thing = factor(), factor(), pick(things)
  local answer = n * each
  return {
    problem = string.format("%s has %d %s with %d %s in each.%s How many %s in all?",
      pick(names), n, pick(places), each, thing, distractor(thing), thing),
    answer = answer,
    plan = { { code = string.format("print(%d*%d)", n, each), output = tostring(answer) } },
  }
end

--- A product and a remainder.
function shapes.sold()
  local n, each, sold, thing = factor(), factor(), two_digits(), pick(things)
  local answer = n * each - sold
  return {
    problem = string.format("%s buys %d %s of %d %s and sells %d %s.%s How many %s are left?",
      pick(names), n, pick(places), each, thing, sold, thing, distractor(thing), thing),
    answer = answer,
    plan = { { code = string.format("print(%d*%d-%d)", n, each, sold), output = tostring(answer) } },
  }
end

--- Two different piles, added.
function shapes.piles()
  local a, b, c, d, thing = factor(), factor(), factor(), factor(), pick(things)
  local answer = a * b + c * d
  return {
    problem = string.format("There are %d %s of %d %s and %d %s of %d %s. How many %s in all?",
      a, pick(places), b, thing, c, pick(places), d, thing, thing),
    answer = answer,
    plan = { { code = string.format("print(%d*%d+%d*%d)", a, b, c, d), output = tostring(answer) } },
  }
end

local orders = {
  { text = "multiply %d by %d and add %d", code = "print(%d*%d+%d)", sign = 1 },
  { text = "multiply %d by %d and take away %d", code = "print(%d*%d-%d)", sign = -1 },
}

--- Two calls, where the second depends on the output of the first.
function shapes.note()
  local order, a, b, c = pick(orders), factor(), factor(), two_digits()
  local text = string.format(order.text, a, b, c)
  local answer = a * b + order.sign * c
  return {
    problem = string.format("%s left a note. Print note and do what it says. What is the result?", pick(names)),
    answer = answer,
    prelude = string.format("note = %q", text),
    plan = {
      { code = "print(note)", output = text },
      { code = string.format(order.code, a, b, c), output = tostring(answer) },
    },
  }
end

--- A variable that may be undefined: then the first program fails, and the second uses the number
--- in the text.
function shapes.stock()
  local stock, guess, each, thing = factor(), factor(), factor(), pick(things)
  local known = math.random() < 0.5
  local answer = (known and stock or guess) * each
  local program = string.format("print(stock*%d)", each)
  local plan = { { code = program, output = tostring(answer) } }
  if not known then
    plan = {
      { code = program, output = "NameError: name 'stock' is not defined" },
      { code = string.format("print(%d*%d)", guess, each), output = tostring(answer) },
    }
  end
  return {
    problem = string.format("Each crate holds %d %s. The number of crates is stock, or %d if stock is unknown. How many %s?",
      each, thing, guess, thing),
    answer = answer,
    prelude = known and string.format("stock = %d", stock) or nil,
    plan = plan,
  }
end

local order = { "product", "sold", "piles", "note", "stock" }

--- A problem of a random shape, as a dataset row.
local function problem()
  local shape = pick(order)
  local made = shapes[shape]()
  made.shape = shape
  made.answer = tostring(made.answer)
  return made
end

--- The messages of a good solver in ReTool's format: calls the interpreter for each program, then
--- answers.
local function solution(made)
  local messages = { r1.user(made.problem) }
  for _, call in ipairs(made.plan) do
    r1.push(messages, r1.assistant("<code>" .. call.code .. "</code>"))
    r1.push(messages, { role = "tool", content = call.output })
  end
  r1.push(messages, r1.assistant("<answer>\\boxed{" .. made.answer .. "}</answer>"))
  return { messages = messages, format = "retool" }
end

--- The messages of a solver that answers at once with a number, in ReTool's format.
local function guess(made, answer)
  return {
    messages = { r1.user(made.problem), r1.assistant("<answer>\\boxed{" .. answer .. "}</answer>") },
    format = "retool",
  }
end

--- The interpreter's schema in the Hermes format.
local python_schema = {
  type = "function",
  ["function"] = {
    name = "python",
    description = "Runs a Python program and returns what it prints.",
    parameters = { type = "object", properties = { code = { type = "string" } }, required = { "code" } },
  },
}

return {
  problem = problem, solution = solution, guess = guess,
  shapes = shapes, order = order, python_schema = python_schema,
}
