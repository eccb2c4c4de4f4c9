--- What {{file}} promises: r1 test {{test}}

local script = r1.script("{{beside}}")

local function worth(reply)
  local trajectory = script:reset { row = 0 }
  trajectory:step(reply)
  return (trajectory:reward())
end

test("a program is worth the share of its tests that pass, and a little more", function()
  expect(worth("```python\ndef double(x):\n  return 2 * x\n```")):near(1.1)
  expect(worth("```python\ndef double(x):\n  return 4\n```")):near(0.6)
  expect(worth("```python\ndef double(x)\n```")):near(0.1)
  expect(worth("def double(x): return 2 * x")):near(0)
end)

test("a program cannot declare itself right", function()
  expect(worth("```python\nimport os\nos._exit(0)\n```")):near(0.1)
  expect(worth("```python\nraise SystemExit\n```")):near(0.1)
  expect(worth("```python\nclass Any:\n  def __eq__(self, other): return True\ndef double(x): return Any()\n```")):near(0.1)
end)

test("programs can be tried out first", function()
  local trajectory = script:reset { row = 0 }
  local step = trajectory:call("python", { code = "print(2 * 21)" })
  expect(step.tools[1].output):equals("42")
  expect(step.done):equals(false)
end)
