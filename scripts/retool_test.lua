--- Tests of scripts/retool.lua.

local script = r1.script("scripts/retool.lua")
local task = { problem = "What is 6 * 7?", answer = "42" }

test("the right answer has reward 1, any other -1", function()
  for reply, worth in pairs { ["<answer>\\boxed{42}</answer>"] = 1, ["<answer>\\boxed{41}</answer>"] = -1, ["42"] = -1 } do
    local trajectory = script:reset { task = task }
    expect(trajectory:step(reply).done):equals(true)
    expect(trajectory:reward()):near(worth)
  end
end)

test("programs are run, counted and answered in the same turn", function()
  local trajectory = script:reset { task = task }
  local step = trajectory:step("<code>\nprint(6 * 7)\n</code>")
  expect(step.tools[1].output):equals("42")
  expect(step.done):equals(false)
  local messages = trajectory:observe()
  expect(messages[#messages]):equals { role = "tool", name = "python", content = "42" }
  trajectory:step("<code>\n1 / 0\n</code>")
  expect(trajectory:state().calls):equals(2)
  expect(trajectory:state().failed):equals(1)
  trajectory:step("<answer>\\boxed{42}</answer>")
  local _, parts = trajectory:reward()
  expect(parts):equals { outcome = 1, accuracy = 1, calls = 2, tool_use = 1 }
end)

test("the rows are deterministic", function()
  expect(script:row(17)):equals(script:row(17))
  expect(script:row(17)):differs(script:row(18))
end)

test("params.instruct explains the format before the problem", function()
  local instructed = r1.script("scripts/retool.lua", { settings = { ["params.instruct"] = true } })
  local content = instructed:reset({ task = task }):observe()[1].content
  for _, part in ipairs { "<code>", "</code>", "<interpreter>", "<answer>", "\\boxed{", "What is 6 * 7?" } do
    expect(content):contains(part)
  end
  expect(script:reset({ task = task }):observe()[1].content):equals("What is 6 * 7?")
end)

test("a reply that was cut is truncated", function()
  local trajectory = script:reset { task = task }
  expect(trajectory:step({ text = "Let me think", finish_reason = "length" }).status):equals("truncated")
end)

test("rows of DAPO-Math-17k: the problem without its instructions, the answer of reward_model", function()
  local row = {
    data_source = "math_dapo",
    prompt = { { role = "user", content = "Solve the following math problem step by step. The last line of your response should be of the form "
      .. "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 6 * 7?\n\n"
      .. "Remember to put your answer on its own line after \"Answer:\"." } },
    reward_model = { ground_truth = "42", style = "rule-lighteval/MATH_v2" },
  }
  local trajectory = script:reset { task = row }
  expect(trajectory:observe()[1].content):equals("What is 6 * 7?")
  trajectory:step("<answer>\\boxed{42}</answer>")
  expect(trajectory:reward()):near(1)
end)

test("demonstrations solve or guess", function()
  local problems = require("./lib/problems")
  local made = problems.shapes.product()
  local solved = problems.solution(made)
  expect(#solved.messages):equals(4)
  expect(solved.messages[2].content):equals("<code>" .. made.plan[1].code .. "</code>")
  expect(solved.messages[4].content):contains("\\boxed{" .. made.answer .. "}")
  expect(problems.guess(made, 7).messages[2].content):equals("<answer>\\boxed{7}</answer>")
end)
