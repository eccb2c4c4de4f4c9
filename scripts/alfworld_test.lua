--- Tests of scripts/alfworld.lua, with the household of scripts/lib/household.lua.

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
  trajectory:step("Action: dance\nAction: go to bed 1")
  messages = trajectory:state().messages
  expect(messages[#messages].content):contains("You are at bed 1.")
  expect(trajectory:reward()):near(-0.1)
end)
