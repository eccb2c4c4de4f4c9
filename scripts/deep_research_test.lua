--- Tests of scripts/deep_research.lua.

local model = r1.model("r1-nano")
-- Tests have no policy that could write a summary.
local script = r1.script("scripts/deep_research.lua", { model = model, settings = { ["params.summarizer"] = "r1-nano" } })

test("the pages come one at a time, and the last message says that there are no more", function()
  local row = script:row(0)
  local trajectory = script:reset { row = 0 }
  for _, page in ipairs(row.pages) do
    trajectory:step("next")
    local messages = trajectory:state().messages
    expect(messages[#messages].content):equals(page.text)
  end
  trajectory:step("next")
  local messages = trajectory:state().messages
  expect(messages[#messages].content):equals("That was all.")
  trajectory:step(`<answer>{row.answer}</answer>`)
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts.pages):near(1)
end)

test("the prompt stays within the window, with the question and a summary of the policy", function()
  local row = script:row(1)
  local trajectory = script:reset { row = 1 }
  for _ = 1, #row.pages + 1 do
    trajectory:observe()
    trajectory:step("next")
  end
  local shown = trajectory:observe()
  expect(shown[2].content):contains(row.question)
  expect(shown[2].content):contains("Summary:")
  expect(#shown < #trajectory:state().messages):equals(true)
  expect(trajectory:state().summaries > 0):equals(true)
end)

test("the answer to a ledger is the last entry of the key", function()
  for index = 0, 50 do
    local row, latest = script:row(index), nil
    for _, page in ipairs(row.pages) do
      for _, entry in ipairs(page.entries) do
        if entry[1] == row.asked then latest = entry[2] end
      end
    end
    expect(row.answer):equals(`Key {latest}`)
  end
end)

test("passages of MuSiQue and HotpotQA are the pages", function()
  local rows = {
    { question = "Who?", answer = "Ada", paragraphs = { { title = "T", paragraph_text = "Ada did.", is_supporting = true } } },
    { question = "Who?", answer = "Ada", context = { title = { "T" }, sentences = { { "Ada ", "did." } } } },
    { question = "Who?", answer = "Ada", context = { { "T", { "Ada ", "did." } } } },
  }
  for _, row in ipairs(rows) do
    local trajectory = script:reset { task = row }
    trajectory:step("next")
    local messages = trajectory:state().messages
    expect(messages[#messages].content):equals("T: Ada did.")
  end
end)

test("params.notes adds a tool whose texts are shown again", function()
  local noting = r1.script("scripts/deep_research.lua", { model = model, settings = { ["params.notes"] = true, ["policy.max_context"] = 1024 } })
  local trajectory = noting:reset { row = 0 }
  expect(trajectory:call("note", { text = "Key Ana." }).tools[1].output):equals("kept")
  expect(trajectory:observe()[2].content):contains("- Key Ana.")
  local _, parts = trajectory:reward()
  expect(parts.notes):equals(1)
end)
