--- Tests of scripts/mcp.lua, with the server scripts/lib/units_server.py.

local script = r1.script("scripts/mcp.lua")
local task = { question = "How many minutes are 12 hours?", answer = 720 }

test("the tool of the server converts, and the number is the answer", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:call("convert", { amount = 12, from = "hours", to = "minutes" })
  expect(step.tools[1].output):equals("720")
  trajectory:step("#### 720")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts):equals { outcome = 1, calls = 1, failed = 0 }
end)

test("units that do not fit are an error of the tool", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:call("convert", { amount = 1, from = "hours", to = "feet" })
  expect(step.tools[1].ok):equals(false)
  expect(step.tools[1].output):contains("can't be converted")
end)

test("the answers of the rows are those of the server", function()
  for index = 0, 5 do
    local row = script:row(index)
    local to, amount, from = row.question:match("many (%a+) are (%d+) (%a+)%?")
    local step = script:reset({ row = index }):call("convert", { amount = tonumber(amount), from = from, to = to })
    expect(tonumber(step.tools[1].output)):near(row.answer)
  end
end)
