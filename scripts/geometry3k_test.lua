--- Tests of scripts/geometry3k.lua.

local script = r1.script("scripts/geometry3k.lua")
local FIGURE = { rgb = string.rep("\1\2\3", 32 * 32), width = 32 }
local PUBLISHED = { images = { FIGURE }, problem = "<image>Find x.", answer = "2 \\sqrt { 3 }" }
local VERL = {
  data_source = "hiyouga/geometry3k",
  images = { FIGURE },
  prompt = { { role = "user", content = "<image>Find x." } },
  reward_model = { style = "rule", ground_truth = "2 \\sqrt { 3 }" },
  extra_info = { index = 0, split = "train" },
}

test("rows as published and rows for verl have the figure before the question", function()
  for _, task in ipairs { PUBLISHED, VERL } do
    local messages = script:reset({ task = task }):observe()
    expect(#messages):equals(1)
    expect(#messages[1].content):equals(2)
    expect(messages[1].content[1].type):equals("image")
    expect(messages[1].content[2]):equals { type = "text", text = "Find x." }
  end
end)

test("the answer in the box counts nine tenths, the format one", function()
  local replies = {
    ["<think>sides</think>\\boxed{2\\sqrt{3}}"] = 1,
    ["\\boxed{2\\sqrt{3}}"] = 0.9,
    ["<think>sides</think>\\boxed{3}"] = 0.1,
    ["2"] = 0,
  }
  for reply, worth in pairs(replies) do
    for _, task in ipairs { PUBLISHED, VERL } do
      local trajectory = script:reset { task = task }
      expect(trajectory:step(reply).status):equals("terminated")
      expect(trajectory:reward()):near(worth)
    end
  end
end)

test("the reasoning of a drawn row gives its answer", function()
  for index = 0, 20 do
    local row = script:row(index)
    expect(#row.images):equals(1)
    local trajectory = script:reset { row = index }
    trajectory:step(`<think>{row.reasoning}</think>\\boxed\{{row.answer}}`)
    expect(trajectory:reward()):near(1)
    expect(r1.math_equal(row.reasoning, row.answer)):equals(true)
  end
end)
