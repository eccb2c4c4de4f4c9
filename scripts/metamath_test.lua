--- Tests of scripts/metamath.lua.

local script = r1.script("scripts/metamath.lua")
local TASK = { query = "2 + 3?", response = "2 + 3 = 5\n#### 5\nThe answer is: 5" }

test("later attempts earn half of the one before", function()
  for wrong = 0, 3 do
    local trajectory = script:reset { task = TASK }
    for _ = 1, wrong do
      local step = trajectory:step("<answer>6</answer>")
      expect({ step.reward, step.done }):equals({ 0, false })
    end
    local step = trajectory:step("<think>2 + 3</think><answer> 5.0 </answer>")
    expect({ step.reward, step.status }):equals({ 1 / 2 ^ wrong, "terminated" })
    local _, parts = trajectory:reward()
    expect({ parts.solved, parts.first, parts.attempts }):equals({ 1, wrong == 0 and 1 or 0, wrong + 1 })
  end
end)

test("the attempts are limited, and a reply without an answer has a penalty", function()
  local trajectory = script:reset { task = TASK }
  expect(trajectory:step("5").reward):near(-0.1)
  expect(trajectory:observe()[4].content):equals("Incorrect. Please think again.")
  for _ = 1, 3 do trajectory:step("<answer>4</answer>") end
  expect(trajectory:step("<answer>4</answer>").status):equals("truncated")
end)

test("rows of GSM8K have a question and an answer, and a row without an answer is an error", function()
  local trajectory = script:reset { task = { question = "2 + 3?", answer = "2 + 3 = 5\n#### 5" } }
  expect(trajectory:step("<answer>5</answer>").status):equals("terminated")
  for _, task in ipairs { { query = "?", response = "Five." }, { question = "?", answer = "Five." }, { query = "?" } } do
    local ok, why = pcall(function() return script:reset { task = task } end)
    expect(ok):equals(false)
    expect(tostring(why)):contains("the row has no answer")
  end
end)

test("a formula is compared by its value", function()
  local trajectory = script:reset { task = { query = "?", response = "Thus. The answer is: \\frac{1}{2}" } }
  expect(trajectory:step("<answer>0.5</answer>").status):equals("terminated")
end)
