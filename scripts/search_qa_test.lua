--- Tests of scripts/search_qa.lua.

local script = r1.script("scripts/search_qa.lua")

-- Searches for the lot and for its order.
local function two_hops(trajectory, fact)
  local first = trajectory:call("search", { query = fact.lot }).tools[1].output
  local second = trajectory:call("search", { query = fact.order }).tools[1].output
  return first, second
end

test("two searches find the answer of a generated question", function()
  for index = 0, 20 do
    local row = script:row(index, "eval")
    local trajectory = script:reset { row = index, split = "eval" }
    local first, second = two_hops(trajectory, row.fact)
    local lot, order = row.fact.lot, row.fact.order
    expect(first):equals(`Doc 1(Title: {lot}) {lot}: order {order}.`)
    expect(second):equals(`Doc 1(Title: {order}) {order}: {row.answer}.`)
    trajectory:step(`<answer>{row.answer}</answer>`)
    local reward, parts = trajectory:reward()
    expect(reward):near(1)
    expect(parts):equals { outcome = 1, em = 1, f1 = 1, recall = 1, searches = 2 }
  end
end)

test("lots of held-out questions are in no training question", function()
  local seen = {}
  for index = 0, 2000 do seen[script:row(index).fact.lot] = true end
  for index = 0, 127 do expect(seen[script:row(index, "eval").fact.lot]):equals(nil) end
end)

test("the answer of the first hop is wrong", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  trajectory:call("search", { query = row.fact.lot })
  trajectory:step(`<answer>{row.fact.order}</answer>`)
  local reward, parts = trajectory:reward()
  expect(reward):near(0)
  expect(parts.recall):near(0.5)
end)

test("columns of HotpotQA, MuSiQue, FlashRAG and verl", function()
  local rows = {
    { question = "Who?", answer = "Ada Lovelace", supporting_facts = { title = { "A", "B" }, sent_id = { 0, 1 } } },
    { question = "Who?", answer = "A. Lovelace", answer_aliases = { "Ada Lovelace" }, paragraphs = {} },
    { question = "Who?", golden_answers = { "the Ada Lovelace" } },
    { prompt = { { role = "user", content = "Who?" } }, reward_model = { ground_truth = { target = { "Ada Lovelace" } } } },
  }
  for _, row in ipairs(rows) do
    local trajectory = script:reset { task = row }
    trajectory:step("<answer>Ada Lovelace</answer>")
    expect(trajectory:reward()):near(1)
  end
end)

test("params.reward selects F1, or Agent-R1's reward from -1 to 1", function()
  local function worth(kind, reply)
    local chosen = r1.script("scripts/search_qa.lua", { settings = { ["params.reward"] = kind } })
    local trajectory = chosen:reset { task = { question = "Who?", answer = "Ada Lovelace" } }
    trajectory:step(reply)
    return (trajectory:reward())
  end
  expect(worth("f1", "<answer>Lovelace</answer>")):near(2 / 3)
  expect(worth("qa_em_and_format", "<think>…</think>\n<answer>It was Ada Lovelace.</answer>")):near(0.5)
  expect(worth("qa_em_and_format", "<answer>Ada Lovelace</answer>")):near(-1)
  expect(function() worth("bleu", "") end):raises("params.reward")
end)

test("a file of questions is searched in its paragraphs, and every fifth question is held out", function()
  local multihop = require("./lib/multihop")("../tests/fixtures/multihop.jsonl")
  expect(#multihop.passages):equals(10)
  expect({ multihop.train_count, multihop.held_out_count }):equals { 4, 1 }
  local asked = r1.script("scripts/search_qa.lua", {
    settings = { ["params.questions"] = "../tests/fixtures/multihop.jsonl" },
  })
  local trajectory = asked:reset { task = multihop.held_out(1) }
  expect(trajectory:step("<search>Pell Bridge</search>").tools[1].output):contains("crosses the river Orn")
  expect(trajectory:step("<answer>Gray Sea</answer>").status):equals("terminated")
  expect(trajectory:reward()):near(1)
end)

test("a demonstration searches for the title in the question first", function()
  local multihop = require("./lib/multihop")("../tests/fixtures/multihop.jsonl")
  local row = multihop.demonstration(1, "system", {}, 1)
  expect(row.messages[3].tool_calls[1].arguments.query):equals("Lake Orla")
  expect(row.messages[4].content):contains("Tarn Works")
  expect(row.messages[#row.messages].content):equals("<answer>Ida Moss</answer>")
end)
