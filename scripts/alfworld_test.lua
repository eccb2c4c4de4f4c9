--- Tests of scripts/alfworld.lua, with the household of scripts/lib/household.lua.

local household = require("./lib/household")
local script = r1.script("scripts/alfworld.lua")

test("four actions do each task", function()
  for index = 0, 30 do
    local row = script:row(index)
    expect(row.from ~= row.to):equals(true)
    local trajectory = script:reset { row = index }
    expect(trajectory:observe()[2].content):contains(row.question)
    for _, action in ipairs { `go to {row.from}`, `take {row.thing}`, `go to {row.to}` } do
      expect(trajectory:step("Action: " .. action).done):equals(false)
    end
    local last = trajectory:step(`I put it there.\nAction: put {row.thing}`)
    expect(last.done):equals(true)
    expect(last.reward):near(1)
    local reward, parts = trajectory:reward()
    expect(reward):near(1)
    expect(parts):equals { success = 1, invalid = 0, steps = 4 }
  end
end)

test("actions that do not apply change nothing", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  for _, action in ipairs { `take {row.thing}`, `put {row.thing}`, "go to the moon", "dance" } do
    trajectory:step("Action: " .. action)
    local messages = trajectory:state().messages
    expect(messages[#messages].content):equals("Nothing happens.")
  end
  local _, parts = trajectory:reward()
  expect(parts.success):equals(0)
end)

test("the wrong place is not the goal", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  for _, action in ipairs { `go to {row.from}`, `take {row.thing}` } do trajectory:step("Action: " .. action) end
  expect(trajectory:step(`Action: put {row.thing}`).done):equals(false)
end)

test("a reply without an action gives an error, and the last action counts", function()
  local trajectory = script:reset { row = 0 }
  trajectory:step("hello")
  local messages = trajectory:state().messages
  expect(messages[#messages].content):contains("no line Action:")
  trajectory:step("Action: dance\nAction: go to shelf 4")
  messages = trajectory:state().messages
  expect(messages[#messages].content):contains("You are at shelf 4.")
  expect(trajectory:reward()):near(-0.1)
end)

test("the prompt has the last two actions and the task again instead of the conversation", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  local first = trajectory:observe()[2].content
  expect(first):contains(row.question)
  for _, place in ipairs { "shelf 1", "shelf 4", "shelf 6" } do trajectory:step("Action: go to " .. place) end
  local shown = trajectory:observe()
  expect(#shown):equals(2)
  local function seen(place) return `> go to {place}\nYou are at {place}. You see {row.from == place and "a " .. row.thing or "nothing"}.` end
  expect(shown[2].content):equals(`{first}\n{seen("shelf 4")}\n{seen("shelf 6")}\nYour task: {row.question}`)
end)

test("a player who makes no mistakes does each task", function()
  for _ = 1, 30 do
    local task = household.row()
    local texts, actions = household.walk(task, 200, 1)
    expect(#texts):equals(#actions)
    expect(actions[#actions]):equals(`put {task.thing}`)
    expect(texts[#texts]):contains(`You are at {task.to}.`)
  end
end)
