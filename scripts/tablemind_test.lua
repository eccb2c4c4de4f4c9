--- Tests of scripts/tablemind.lua.

local script = r1.script("scripts/tablemind.lua")
local function reply(values, thought)
  return `<think>{thought or "done"}</think>\n\`\`\`json\n{r1.json.encode { answer = values }}\n\`\`\``
end

test("the query of a generated question has its answer, the other query has not", function()
  for index = 0, 40 do
    local row = script:row(index)
    local solution = row.solution
    local trajectory = script:reset { row = index }
    local right = trajectory:step(`<think>{solution.plan}</think><code>{solution.query}</code>`).tools[1].output
    expect(right:match("\n(.*)")):equals(row.answers[1])
    local wrong = trajectory:step(`<code>{solution.bad_query}</code>`).tools[1].output
    expect(wrong:match("\n(.*)")):equals(solution.bad_result)
    expect(wrong ~= right):equals(true)
  end
end)

test("plan, act, reflect: the reward and its parts", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  trajectory:step(`<think>plan</think><code>{row.solution.query}</code>`)
  trajectory:step(reply(row.answers))
  local reward, parts = trajectory:reward()
  local efficiency = math.exp(-0.015 * 2) * (0.5 - 0.01 * 4)
  expect(reward):near(2 + efficiency)
  expect(parts.efficiency):near(efficiency)
  expect(parts.queries):equals(1)
end)

test("a guess that is right earns no more than format and accuracy, a wrong answer only the format", function()
  local guess = script:reset { row = 0 }
  guess:step(reply(script:row(0).answers))
  expect(guess:reward()):near(2 - 0.01 * math.exp(-0.015))
  local wrong = script:reset { row = 0 }
  wrong:step(reply { "nothing" })
  expect(wrong:reward()):near(1)
end)

test("a query that fails is a result to reflect on", function()
  local trajectory = script:reset { row = 0 }
  local step = trajectory:step("<code>SELECT nme FROM t</code>")
  expect(step.done):equals(false)
  expect(step.tools[1].output):contains("no such column: nme")
  trajectory:step(reply(script:row(0).answers))
  local _, parts = trajectory:reward()
  expect(parts.queries):equals(0)
end)

test("the prompt has the question and the head of the table", function()
  local task = {
    question = "Which award in 1981?", answers = { "Tony" },
    table = { header = { "Year", "Award | prize\r" }, rows = { { "1979", "Olivier" }, { "1981", "Tony" } } },
  }
  local trajectory = script:reset { task = task }
  local text = trajectory:observe()[2].content
  expect(text):contains("Which award in 1981?\nYear|Award prize \n1979|Olivier\n… 1 more")
  local step = trajectory:step("<code>SELECT Year FROM t WHERE Year > 1980</code>")
  expect(step.tools[1].output):equals("Year\n1981")
  expect(function() script:reset { task = { question = "?", answers = { "1" } } } end):raises("table")
end)

test("answers are compared as multisets, numbers within 0.01", function()
  local task = { question = "?", table = { header = { "a" }, rows = { { "1" } } }, answers = { "1,200", "Ada", "Ada" } }
  local function accuracy(values)
    local trajectory = script:reset { task = task }
    trajectory:step(reply(values))
    local _, parts = trajectory:reward()
    return parts.accuracy
  end
  expect(accuracy { "ada", "1200.004", "Ada" }):equals(1)
  expect(accuracy { "Ada", "1200" }):equals(0)
  expect(accuracy { "Ada", "1200", "1200" }):equals(0)
  expect(accuracy { "Ada", "1200.5", "Ada" }):equals(0)
end)

test("params.plans: the answer of most attempts counts", function()
  local several = r1.script("scripts/tablemind.lua", { settings = { ["params.plans"] = 3 } })
  local answers = several:row(0).answers
  local trajectory = several:reset { row = 0 }
  trajectory:step(`<code>{several:row(0).solution.query}</code>`)
  trajectory:step(reply(answers))
  trajectory:step(reply { "nothing" })
  expect(trajectory:step(reply(answers)).done):equals(true)
  local _, parts = trajectory:reward()
  expect(parts.accuracy):equals(1)
  expect(parts.agreement):near(2 / 3)
end)
