--- Tests of scripts/ledger.lua: the policy's notes are added to the context, and old messages are
--- dropped.

local model = r1.model("r1-nano")
local script = r1.script("scripts/ledger.lua", { model = model })

test("the context has only the latest turns and the notes", function()
  local trajectory = script:reset { task = { amounts = { 5, 7, -2, 4 }, answer = 14 } }
  for _, balance in ipairs { 5, 12, 10 } do trajectory:call("note", { text = "balance " .. balance }) end
  local seen = {}
  for _, message in ipairs(trajectory:observe()) do r1.push(seen, message.content) end
  local all = table.concat(seen, "\n")
  expect(all):contains("- balance 10")
  expect(all):contains("Received: 4")
  expect(string.find(all, "Received: 5", 1, true)):equals(nil)
end)

test("the reward depends on the balance", function()
  local function play(answer)
    local trajectory = script:reset { task = { amounts = { 5, -2 }, answer = 3 } }
    trajectory:call("note", { text = "5" })
    trajectory:call("note", { text = "3" })
    expect(trajectory:step("\\boxed{" .. answer .. "}").status):equals("terminated")
    return (trajectory:reward())
  end
  expect(play(3)):near(1.1)
  expect(play(4)):near(0.1)
end)
