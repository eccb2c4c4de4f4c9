--- Tests of scripts/multi_tool.lua.

local script = r1.script("scripts/multi_tool.lua")

test("three tools lead to the price", function()
  local row = script:row(0)
  local order = row.order
  local trajectory = script:reset { row = 0 }
  expect(trajectory:call("search", { query = order.name }).tools[1].output):contains(`(Title: {order.name}) {order.count} pieces of item {order.item}.`)
  local price = trajectory:call("sql", { sql = `SELECT price FROM prices WHERE item = {order.item}` }).tools[1].output
  expect(price):contains(tostring(order.price))
  expect(trajectory:call("calculator", { expression = `{order.count}*{order.price}` }).tools[1].output):equals(tostring(row.answer))
  trajectory:step(`#### {row.answer}`)
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts):equals { outcome = 1, kinds = 3, calls = 3 }
end)

test("calls of one reply run together, and are limited", function()
  local function calls(count)
    local call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
    return script:reset({ row = 0 }):step(string.rep(call, count, "\n"))
  end
  expect(#calls(3).tools):equals(3)
  expect(calls(3).reward):near(0)
  expect(calls(5).reward):near(-0.1)
end)

test("a statement that is wrong costs 0.05 and names the column", function()
  local step = script:reset({ row = 0 }):call("sql", { sql = "SELECT cost FROM prices" })
  expect(step.reward):near(-0.05)
  expect(step.tools[1].output):contains("cost")
end)
