--- Tests of scripts/gsm8k_tool.lua.

local script = r1.script("scripts/gsm8k_tool.lua")
local task = { question = "Ana has 43 boxes with 58 pens in each. How many pens in all?", answer = "43*58=2494\n#### 2494" }

test("a calculation, a check and the answer", function()
  local trajectory = script:reset { task = task }
  expect(trajectory:call("calculator", { expression = "43*58" }).tools[1].output):equals("2494")
  expect(trajectory:call("check_answer", { answer = "2494" }).tools[1].output):equals("correct")
  expect(trajectory:call("check_answer", { answer = "2493" }).tools[1].output):equals("incorrect")
  expect(trajectory:step("#### 2494").status):equals("terminated")
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts):equals { outcome = 1, calls = 3, checks = 2 }
end)

test("an expression that can't be computed is a result that the policy reads", function()
  local step = script:reset({ task = task }):call("calculator", { expression = "43 boxes" })
  expect(step.done):equals(false)
  expect(step.tools[1].ok):equals(false)
  expect(step.tools[1].output):contains("boxes")
end)

test("a malformed call costs 0.1 and the task continues", function()
  local step = script:reset({ task = task }):step('<tool_call>{"name": "calculator"</tool_call>')
  expect(step.done):equals(false)
  expect(step.reward):near(-0.1)
end)

test("params.check = false leaves the second tool out", function()
  local alone = r1.script("scripts/gsm8k_tool.lua", { settings = { ["params.check"] = false } })
  local step = alone:reset({ task = task }):call("check_answer", { answer = "2494" })
  expect(step.tools[1].ok):equals(false)
end)

test("GSM8K's annotations are calls of the calculator", function()
  local annotated = require("./lib/annotated")
  local messages = annotated.messages("Half is 48/2 = <<48/2=24>>24 clips, 48+24 = $<<48+24=72>>72.\n#### 72")
  expect(#messages):equals(5)
  expect(messages[1]):equals(r1.assistant("Half is 48/2 = <<48/2>>"))
  expect(messages[2].content):equals("24")
  expect(messages[3].content):equals(" clips, 48+24 = $<<48+24>>")
  expect(messages[5].content):equals(".\n#### 72")
end)

test("an annotation with another value than the calculator's is no call", function()
  local annotated = require("./lib/annotated")
  local messages = annotated.messages("It is 1/3 = <<1/3=0.33>>0.33.\n#### 0.33")
  expect(#messages):equals(1)
  expect(messages[1].content):equals("It is 1/3 = 0.33.\n#### 0.33")
end)

test("the value follows in the same turn", function()
  local solutions = r1.script("scripts/gsm8k_tool.lua", {
    settings = { ["params.solutions"] = "../tests/fixtures/gsm8k.jsonl" },
  })
  local trajectory = solutions:reset { task = task }
  expect(trajectory:step("43*58 = <<43*58>>").tools[1].output):equals("2494")
  expect(trajectory:step("2494 pens.\n#### 2494").status):equals("terminated")
  expect(trajectory:reward()):near(1)
end)
