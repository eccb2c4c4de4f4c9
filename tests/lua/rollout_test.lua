--- r1.script and r1.rollout: trajectories with given responses, by a function, by a model; forks
--- and branches.

local guess = r1.script("envs/guess.lua")

-- A policy that halves what is left.
local function halve(messages, step)
  local low, high = 1, 31
  for index = 2, #messages, 2 do
    local number = tonumber(messages[index].content)
    if messages[index + 1].content == "higher" then low = number + 1 else high = number - 1 end
  end
  return tostring((low + high) // 2)
end

test("a trajectory has given responses", function()
  expect(guess:rows()):equals(3)
  expect(guess:row(1)):equals { secret = 20 }
  expect(guess.tools[1]["function"].name):equals("add")
  local trajectory = guess:reset { row = 1, seed = 5 }
  expect(trajectory:observe()):equals { { role = "user", content = "Guess" } }
  local step = trajectory:step("30")
  expect(step.reward):near(0.1)
  expect(step.done):equals(false)
  expect(#trajectory:observe()):equals(3)
  step = trajectory:step("20")
  expect(step.status):equals("terminated")
  local reward, parts = trajectory:reward()
  expect(reward):near(1.2)
  expect(parts):equals { solved = 1, tries = 2 }
  expect(function() trajectory:step("1") end):raises("the trajectory is over: terminated")
  local ended = trajectory:finish()
  expect(ended.status):equals("terminated")
  expect(ended.reward):near(1.2)
  expect(#ended.steps):equals(2)
  expect(ended.messages[#ended.messages].content):equals("right")
end)

test("calls of tools are written in the policy's format", function()
  local trajectory = guess:reset { task = { secret = 7 } }
  local step = trajectory:call("add", { a = 2, b = 3 })
  expect(step.text):contains("<tool_call>")
  expect(step.tools[1].output):equals("5")
  expect(step.reward):near(0.5)
  expect(trajectory:call("add", { a = "two" }).tools[1].ok):equals(false)
  -- The env ends it, also after a truncated reply.
  expect(trajectory:step({ text = "7", finish_reason = "length" }).status):equals("terminated")
end)

test("arguments that plain data can't hold are observations", function()
  local function called(arguments)
    local reply = `<tool_call>\{"name": "add", "arguments": {arguments}}</tool_call>`
    return guess:reset({ task = { secret = 7 } }):step(reply).tools[1]
  end
  local deep = string.rep("[", 110) .. string.rep("]", 110)
  expect(called(`\{"a": {deep}, "b": 1}`).output):contains("The arguments of `add` are nested more than 64 deep.")
  -- The key that snapshots of a state use.
  expect(called('{"a": 1, "b": 2, "$r1": "number", "value": "inf"}').output):equals("3")
  expect(r1.json.encode { ["$r1"] = 1 }):equals('{"$r1":1}')
end)

test("a fork is independent", function()
  local trajectory = guess:reset { row = 0, seed = 1 }
  trajectory:step("5")
  local fork = trajectory:fork()
  expect(fork:step("10").done):equals(true)
  expect(trajectory:step("11").done):equals(false)
  expect(fork:state().tries):equals(2)
  expect(fork:finish().reward - trajectory:finish().reward):near(1)
  expect(fork:finish().fork):equals { parent = trajectory:finish().id, step = 1 }
  expect(trajectory:finish().fork):equals(nil)
end)

test("a failure is an error, and the status of the trajectory", function()
  local trajectory = guess:reset {}
  expect(function() trajectory:step("many") end):raises("attempt to compare nil")
  local ended = trajectory:finish()
  expect(ended.status):equals("env_error")
  expect(ended.error):contains("guess.lua:3")
  expect(ended.steps[1].text):equals("many")
  expect(function() guess:reset { rwo = 1 } end):raises("unknown field `rwo`")
  expect(function() r1.script("envs/gess.lua") end):raises("no such file")
  expect(function() trajectory.handle.x() end):raises()
end)

test("a function is rolled out with the observations of the env", function()
  local all = r1.rollout { script = guess, policy = halve, rows = { 0, 1, 2 }, samples = 2 }
  expect(#all):equals(6)
  for _, trajectory in ipairs(all) do expect(#trajectory.steps > 0):equals(true) end
  local broken = r1.rollout { script = guess, policy = function() return "x" end }
  expect(broken[1].status):equals("env_error")
  expect(function() r1.rollout { script = guess, policy = function() error("my own") end } end):raises("my own")
  local settings = { ["env.max_steps"] = 1 }
  local short = r1.rollout { script = "envs/guess.lua", settings = settings, policy = function() return "1" end }
  expect(short[1].status):equals("truncated")
  expect(#short[1].steps):equals(1)
end)

test("continuations branch from a middle state", function()
  local seen = {}
  local function policy(messages, step, attempt)
    if step == 1 and #messages == 1 then
      seen[#seen + 1] = "first"
      return "3"
    end
    return "10"
  end
  local all = r1.rollout { script = guess, policy = policy, rows = { 0 }, branch = { step = 1, count = 4 } }
  expect(#all):equals(4)
  expect(#seen):equals(1)
  for number, trajectory in ipairs(all) do
    expect(trajectory.branch):equals(number - 1)
    expect(trajectory.fork.step):equals(1)
    expect(trajectory.steps[1].text):equals("3")
    expect(trajectory.status):equals("terminated")
  end
end)

test("a model is rolled out with batched replies", function()
  local model = r1.model("r1-nano")
  local script = r1.script("../../scripts/retool.lua", { model = model })
  local requested = { script = script, policy = model, rows = { 0, 1 }, samples = 2, sampling = { max_new_tokens = 12 } }
  local all = r1.rollout(requested)
  expect(#all):equals(4)
  expect(#all[1].steps[1].response_ids > 0):equals(true)
  -- The same seed gives the same.
  expect(r1.rollout(requested)[3].steps[1].response_ids):equals(all[3].steps[1].response_ids)
  requested.branch = { step = 1, count = 3 }
  local branched = r1.rollout(requested)
  for _, trajectory in ipairs(branched) do
    expect(trajectory.steps[1].response_ids):equals(all[trajectory.group * 2 + trajectory.sample + 1].steps[1].response_ids)
  end
  local trajectory = script:reset { row = 0 }
  local step = trajectory:sample(model, { max_new_tokens = 4, temperature = 0 })
  expect(#trajectory:finish().steps[1].response_ids):equals(4)
  expect(step.done):equals(true)
  expect(function() guess:reset({}):sample(model) end):raises("open the script with the model")
end)
