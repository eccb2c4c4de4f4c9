--- lua/tasks.lua, lua/search.lua and lua/calculator.lua.

local calculator = require("@r1/calculator")
local search = require("@r1/search")
local tasks = require("@r1/tasks")

test("expressions are evaluated with the usual precedence", function()
  for text, value in pairs {
    ["2+3*4"] = 14, ["(2+3)*4"] = 20, ["-2^2"] = -4, ["2^3^2"] = 512, ["2**3"] = 8, ["10-4-3"] = 3, ["1/4"] = 0.25,
    ["7 % 4"] = 3, ["1,234*2"] = 2468, [".5+.5"] = 1, ["3 × 4"] = 12, ["--3"] = 3, [" 2 * -3 "] = -6,
  } do
    expect(calculator.evaluate(text)):near(value)
  end
end)

test("an expression that has no value has a reason", function()
  for text, part in pairs {
    [""] = "too early", ["2+"] = "too early", ["2 apples"] = "apples", ["(2"] = "not closed", ["1/0"] = "division",
    ["2 3"] = "can't", ["9^999"] = "not a number", [string.rep("(", 60)] = "nested", [string.rep("1+", 300) .. "1"] = "500",
  } do
    local value, why = calculator.evaluate(text)
    expect(value):equals(nil)
    expect(why):contains(part)
  end
end)

test("numbers are shown as people write them", function()
  expect(calculator.show(2494)):equals("2494")
  expect(calculator.show(-0.5)):equals("-0.5")
  expect(calculator.show(1 / 3)):equals("0.3333333333")
end)

test("questions and answers by the columns of datasets", function()
  expect(tasks.question { prompt = { { role = "system", content = "s" }, { role = "user", content = "q" } } }):equals("q")
  expect(tasks.references { answer = 7 }):equals { "7" }
  expect(tasks.references { reward_model = { ground_truth = "7" } }):equals { "7" }
  expect(function() tasks.question { text = "x" } end):raises("no text in `question`")
  expect(function() tasks.references { text = "x" } end):raises("no `answer`")
end)

test("passages are relevant by is_supporting or supporting_facts", function()
  local hub = { context = { title = { "A", "B" }, sentences = { { "x ", "y" }, { "z" } } }, supporting_facts = { title = { "B", "B" }, sent_id = { 0, 1 } } }
  expect(tasks.passages(hub)):equals { { title = "A", text = "x y", relevant = false }, { title = "B", text = "z", relevant = true } }
  expect(tasks.supporting_titles(hub)):equals { "B" }
  local pairs_of = { context = { { "A", { "x" } } }, supporting_facts = { { "A", 0 } } }
  expect(tasks.passages(pairs_of)):equals { { title = "A", text = "x", relevant = true } }
  local musique = { paragraphs = { { title = "A", paragraph_text = "x", is_supporting = true }, { title = "B", paragraph_text = "y", is_supporting = false } } }
  expect(tasks.supporting_titles(musique)):equals { "A" }
end)

test("hits are shown as r1.tools.search shows them", function()
  expect(search.text { { title = "A", text = "x" }, { text = "y" } }):equals("Doc 1(Title: A) x\nDoc 2: y")
  expect(search.text {}):equals("No passage was found.")
  local messages = { r1.observation("Doc 1(Title: A (b)) x") }
  expect(search.recall(messages, { "A (b)", "C" })):near(0.5)
  expect(search.recall(messages, {})):equals(0)
end)
