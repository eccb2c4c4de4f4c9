--- Tests of scripts/gsm8k.lua.

local script = r1.script("scripts/gsm8k.lua")
local task = {
  question = "Natalia sold 48 clips in April and half as many in May. How many in all?",
  answer = "She sold 48/2 = <<48/2=24>>24 in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72",
}

test("the number after #### is compared with that of GSM8K's solution", function()
  for reply, worth in pairs { ["48+24=72\n#### 72"] = 1, ["#### 72.0"] = 1, ["#### 71"] = 0, ["It is 72."] = 0 } do
    local trajectory = script:reset { task = task }
    expect(trajectory:step(reply).status):equals("terminated")
    expect(trajectory:reward()):near(worth)
  end
end)

test("the prompt has the instruction and the question", function()
  local messages = script:reset({ task = task }):observe()
  expect(messages[1].role):equals("system")
  expect(messages[1].content):contains("####")
  expect(messages[2]):equals { role = "user", content = task.question }
end)

test("the solutions of generated rows are right", function()
  for index = 0, 20 do
    local row = script:row(index)
    local trajectory = script:reset { row = index }
    trajectory:step(row.reasoning)
    local reward, parts = trajectory:reward()
    expect(reward):near(1)
    expect(parts.reasoned):equals(1)
  end
end)
