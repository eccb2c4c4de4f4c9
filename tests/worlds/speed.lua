--- Steps per second through r1, for speed.py: r1 lua speed.lua RECIPE TRAJECTORIES STEPS.
local name, many, steps = arg[1], tonumber(arg[2]), tonumber(arg[3])
local script = r1.script("tests/worlds/" .. name .. ".lua")
local attempts = {}
for i = 1, many do attempts[i] = script:reset { row = 0 } end
local functions = {}
for i = 1, many do
  functions[i] = function()
    for _ = 1, steps do
      -- Left at the start stays at the start.
      if attempts[i]:step("0").done then attempts[i] = script:reset { row = 0 } end
    end
  end
end
local started = r1.clock()
r1.join(functions)
print(many * steps / (r1.clock() - started))
