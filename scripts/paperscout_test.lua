--- Tests of scripts/paperscout.lua.

local library = require("./lib/library")
local papers = require("@r1/papers")
local script = r1.script("scripts/paperscout.lua")

test("a search finds three of six papers, expansions the others", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  local step = trajectory:call("search", { query = row.topic })
  expect(step.tools[1].output):equals("3 new papers")
  expect(step.reward):near(2.9)
  for _, id in ipairs(trajectory:state().papers.order) do
    step = trajectory:call("expand", { id = id })
    expect(step.tools[1].output):equals("1 new paper")
    expect(step.reward):near(0.95)
  end
  local reward, parts = trajectory:reward()
  expect(reward):near(2.9 + 3 * 0.95)
  expect(parts.recall):near(1)
  expect(parts.precision):near(1)
end)

test("the prompt has the two lists and the calls instead of the conversation", function()
  local trajectory = script:reset { task = { query = "Papers about method 25?", answers = { "101" } } }
  expect(trajectory:observe()[2].content):equals("Papers about method 25?\nExpanded: none\nNot expanded: none\nCalls: none")
  trajectory:call("search", { query = "method 25" })
  local id = trajectory:state().papers.order[1]
  trajectory:call("expand", { id = id })
  local shown = trajectory:observe()
  expect(#shown):equals(2)
  expect(shown[2].content):contains(`Expanded:\n[{id}] On method 25`)
  expect(shown[2].content):contains(`Calls:\nsearch "method 25": 3 new papers\nexpand {id}: 1 new paper`)
end)

test("repetitions and unknown papers cost 0.5, and the next prompt has the error", function()
  local trajectory = script:reset { row = 0 }
  local query = { query = "method 25" }
  trajectory:call("search", query)
  expect(trajectory:call("search", query).reward):near(-0.5)
  expect(trajectory:observe()[2].content):contains("this query was searched before")
  expect(trajectory:call("expand", { id = "9" }).reward):near(-0.5)
  local id = trajectory:state().papers.order[1]
  trajectory:call("expand", { id = id })
  expect(trajectory:call("expand", { id = id }).reward):near(-0.5)
end)

test("papers that are found again are not rewarded again", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  trajectory:call("search", { query = row.topic })
  expect(trajectory:call("search", { query = row.topic .. " part" }).reward):near(-0.1)
end)

test("a reply without a call ends the search", function()
  local trajectory = script:reset { row = 0 }
  expect(trajectory:step("done").done):equals(true)
  local _, parts = trajectory:reward()
  expect(parts.recall):equals(0)
end)

test("the fourth new paper of a search has no reward", function()
  local row = script:row(0)
  local more = r1.script("scripts/paperscout.lua", { settings = { ["params.found"] = 6 } })
  local attempt = more:reset { row = 0 }
  local answers = {}
  -- The titles of one topic, then titles that share a word with it: all of them are wanted here.
  attempt:call("search", { query = row.topic })
  for _, id in ipairs(attempt:state().papers.order) do r1.push(answers, id) end
  expect(#answers > 3):equals(true)
  local trajectory = more:reset { task = { query = row.query, answers = answers } }
  local step = trajectory:call("search", { query = row.topic })
  expect(step.tools[1].output):equals(`{#answers} new papers`)
  expect(step.reward):near(2.9)
end)

test("a careful reader finds all papers of a topic and ends", function()
  local _, found_by = papers.tools(library.corpus, { k = 3 })
  local task = library.row()
  local found = papers.start(task.answers)
  for step = 1, 4 do
    local call = library.plan(found, task, 1)
    expect(call.name):equals(step == 1 and "search" or "expand")
    local _, gain = found_by[call.name](found, call.arguments.query or call.arguments.id)
    expect(gain):near(step == 1 and 2.9 or 0.95)
  end
  expect(library.plan(found, task, 1)):equals(nil)
  expect({ papers.quality(found) }):equals { 1, 1 }
end)
