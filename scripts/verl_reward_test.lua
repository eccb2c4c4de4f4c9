--- Tests of scripts/verl_reward.lua.

local script = r1.script("scripts/verl_reward.lua")
local task = {
  data_source = "openai/gsm8k",
  prompt = { r1.user("Natalia sold 48 clips in April and half as many in May. How many in all?") },
  reward_model = { style = "rule", ground_truth = "72" },
}

test("the function of verl compares the number after ####", function()
  for reply, worth in pairs { ["48+24=72\n#### 72"] = 1, ["#### 72.0"] = 1, ["#### 71"] = 0, ["It is 72."] = 0 } do
    local trajectory = script:reset { task = task }
    expect(trajectory:step(reply).status):equals("terminated")
    expect(trajectory:reward()):near(worth)
  end
end)

test("the other fields of its result are metrics", function()
  local trajectory = script:reset { row = 0 }
  trajectory:step(script:row(0).answer)
  local reward, parts = trajectory:reward()
  expect(reward):near(1)
  expect(parts.score):equals(1)
  expect(parts.answered):equals(1)
  expect(parts.characters > 20):equals(true)
end)

test("an exception of the function fails the trajectory", function()
  local other = table.clone(task)
  other.data_source = "mine"
  local trajectory = script:reset { task = other }
  trajectory:step("#### 72")
  expect(function() trajectory:reward() end):raises("NotImplementedError: no score for mine")
end)
