--- Tests of scripts/sources.lua.

local script = r1.script("scripts/sources.lua")

test("a row runs in the environment of its dataset", function()
  -- Datasets are in the order of their names: sums first.
  local easy, hard = script:row(0), script:row(10000)
  expect(easy.data_source):equals("sums")
  expect(easy.env):equals("mental")
  expect(hard.data_source):equals("words")
  expect(hard.env):equals("code")
end)

test("programs are run for word problems only", function()
  local hard = script:reset { task = { env = "code", problem = "What is 6 * 7?", answer = 42 } }
  expect(hard:step("<code>\nprint(6 * 7)\n</code>").done):equals(false)
  expect(hard:step("<answer>\\boxed{42}</answer>").done):equals(true)
  expect(hard:reward()):near(1)
  local easy = script:reset { task = { env = "mental", problem = "What is 3 + 4?", answer = 7 } }
  expect(easy:step("<code>\nprint(3 + 4)\n</code>").done):equals(true)
  expect(easy:reward()):near(-1)
end)
