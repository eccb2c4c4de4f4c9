--- Tests of scripts/webshop.lua, with the shop of scripts/lib/shop.lua.

local script = r1.script("scripts/webshop.lua")

local function page(trajectory)
  local seen = trajectory:observe()
  return seen[#seen].content
end

test("four actions buy what the task asks for", function()
  for index = 0, 30 do
    local row = script:row(index)
    local trajectory = script:reset { row = index }
    expect(page(trajectory)):contains(row.question)
    local actions = { `search[{row.goal.size} {row.goal.thing}]`, `click[{row.product}]`, `click[{row.goal.color}]` }
    for _, action in ipairs(actions) do
      local values = page(trajectory):match("click: (.*)$")
      local value = action:match("click%[(.+)%]")
      if value then expect(values):contains(value) end
      expect(trajectory:step(action).done):equals(false)
    end
    local last = trajectory:step("I have all of it. click[Buy Now]")
    expect(last.done):equals(true)
    expect(last.reward):near(1)
    expect(page(trajectory):match("Thank you for shopping with us!$") ~= nil):equals(true)
    local reward, parts = trajectory:reward()
    expect(reward):near(1)
    expect(parts):equals { score = 1, success = 1, invalid = 0, steps = 4 }
  end
end)

test("a purchase is worth the share of what was asked for", function()
  local row = script:row(0)
  local other = row.goal.color == "red" and "blue" or "red"
  local trajectory = script:reset { row = 0 }
  for _, action in ipairs { `search[{row.goal.thing}]`, "click[next >]", "click[< prev]", `search[{row.goal.thing}]` } do
    trajectory:step(action)
  end
  expect(page(trajectory)):contains("Results: 4")
  trajectory = script:reset { row = 0 }
  for _, action in ipairs { `search[{row.goal.size} {row.goal.thing}]`, `click[{row.product}]`, `click[{other}]` } do
    trajectory:step(action)
  end
  expect(trajectory:step("click[buy now]").reward):near(2 / 3)
  local _, parts = trajectory:reward()
  expect(parts.success):equals(0)
end)

test("another kind of thing is worth nothing", function()
  local row = script:row(0)
  local other = row.goal.thing == "pens" and "rings" or "pens"
  local trajectory = script:reset { row = 0 }
  trajectory:step(`search[{row.goal.size} {other}]`)
  local code = page(trajectory):match("(b%d+): ")
  trajectory:step(`click[{code}]`)
  expect(trajectory:step("click[buy now]").reward):equals(0)
end)

test("a reply without an action, and an action that the page does not have, change nothing", function()
  local trajectory = script:reset { row = 0 }
  local first = page(trajectory)
  for _, reply in ipairs { "hello", "click[buy now]", "click[b999]", "search[]" } do
    trajectory:step(reply)
    expect(page(trajectory)):contains(first)
  end
  expect(trajectory:reward()):near(-0.2)
end)

test("the prompt has the last two actions and the current page only", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  for _, action in ipairs { `search[{row.goal.thing}]`, `click[back to search]`, `search[{row.goal.thing}]` } do trajectory:step(action) end
  local seen = trajectory:observe()
  expect(#seen):equals(2)
  expect(seen[2].content):contains(`You did: click[back to search], search[{row.goal.thing}]\nInstruction:`)
end)
