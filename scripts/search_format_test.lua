--- Tests of scripts/search_format.lua.

local script = r1.script("scripts/search_format.lua")
local format = require("@r1/formats/search_r1")

test("the format reads its calls", function()
  local reply = r1.text.parse_tool_calls(format, "<think>hm</think>I look. <search> Peru </search>")
  expect(reply.reasoning):equals("hm")
  expect(reply.content):equals("I look.")
  expect(reply.calls):equals { { name = "search", arguments = { query = "Peru" } } }
  expect(r1.text.parse_tool_calls(format, "<search>Peru").errors):equals { "<search> was not closed with </search>." }
  expect(r1.text.parse_tool_calls(format, "Lima").calls):equals {}
end)

test("results are in the policy's turn", function()
  local task = { problem = "What is the capital of Peru?", answer = "Lima" }
  local game = script:reset { task = task }
  local step = game:step { text = "I look. <search>capital of Peru</search>", finish_reason = "stop_string" }
  expect(step.tools[1].output):equals("The capital of Peru is Lima.")
  game:step("<answer>Lima</answer>")
  expect(game:reward()):near(1)
  local prompt = r1.text.tokenizer("r1-nano"):decode(game:finish().steps[2].prompt_ids)
  expect(prompt):contains("Write <search>words</search>")
  expect(prompt):contains("</search>\n\n<information>The capital of Peru is Lima.</information>\n\n")
end)

test("a malformed call has a cost", function()
  local game = script:reset { task = { problem = "?", answer = "x" } }
  local step = game:step { text = "<search>Peru", finish_reason = "length" }
  expect(step.reward):near(-0.1)
end)
