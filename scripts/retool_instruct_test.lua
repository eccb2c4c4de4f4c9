--- Tests of scripts/retool_instruct.lua.

local script = r1.script("scripts/retool_instruct.lua")
local task = { problem = "What is 6 * 7?", answer = "42" }

test("the prompt explains the format and ends with the problem", function()
  local prompt = script:reset({ task = task }):observe()[1]
  expect(prompt.role):equals("user")
  for _, part in ipairs { "<code>", "</code>", "<interpreter>", "<answer>", "\\boxed{", "What is 6 * 7?" } do
    expect(prompt.content):contains(part)
  end
end)

test("programs are run, and the right answer has reward 1", function()
  local trajectory = script:reset { task = task }
  expect(trajectory:step("<code>\nprint(6 * 7)\n</code>").tools[1].output):equals("42")
  expect(trajectory:step("<answer>\n\\boxed{42}\n</answer>").status):equals("terminated")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts):equals { outcome = 1, accuracy = 1, answered = 1, programs = 1, failed_programs = 0 }
end)

test("a reply that was cut is truncated", function()
  local trajectory = script:reset { task = task }
  expect(trajectory:step({ text = "Let me think", finish_reason = "length" }).status):equals("truncated")
end)
