--- Estimators over trajectories that share their first steps.

-- A root that is right, a fork after its first step that is wrong, another root that is wrong.
local function rows()
  return {
    { group = 1, trajectory = 1, step = 1, mask = { 1 }, rewards = { 0 }, anchor = "start" },
    { group = 1, trajectory = 1, step = 2, mask = { 1 }, rewards = { 1 }, anchor = "room" },
    { group = 1, trajectory = 2, step = 1, mask = { 1 }, rewards = { 0 }, anchor = "start", shared = 1 },
    { group = 1, trajectory = 2, step = 2, mask = { 1 }, rewards = { 0 }, anchor = "room" },
    { group = 1, trajectory = 3, step = 1, mask = { 1 }, rewards = { 0 }, anchor = "start" },
  }
end

local function advantages(name, options)
  local flat = {}
  for index, row in ipairs(r1.rl.advantages(name, rows(), options).advantages) do flat[index] = row[1] end
  return flat
end

test("a shared step has the mean of its advantages", function()
  local found = advantages("grpo", { normalize = "none" })
  for index, wanted in ipairs { 1 / 6, 2 / 3, 1 / 6, -1 / 3, -1 / 3 } do expect(found[index]):near(wanted) end
end)

test("a tree compares continuations with the state before them", function()
  local found = advantages("tree", { normalize = "none", ["local"] = 1 })
  for index, wanted in ipairs { 1 / 6, 1 / 2, 1 / 6, -1 / 2, -1 / 3 } do expect(found[index]):near(wanted) end
  found = advantages("tree", { normalize = "none" })
  expect(found[2]):near((2 / 3 + 1 / 2) / 2)
end)

test("a fork of a fork shares with both", function()
  -- The root of before, its fork, and a fork of that after its second step: right again.
  local list = rows()
  list[5] = { group = 1, trajectory = 3, step = 1, mask = { 1 }, rewards = { 0 }, anchor = "start", shared = 1 }
  list[6] = { group = 1, trajectory = 3, step = 2, mask = { 1 }, rewards = { 0 }, anchor = "room", shared = 2 }
  list[7] = { group = 1, trajectory = 3, step = 3, mask = { 1 }, rewards = { 1 }, anchor = "hall" }
  local function found(name, options)
    local flat = {}
    for index, row in ipairs(r1.rl.advantages(name, list, options).advantages) do flat[index] = row[1] end
    return flat
  end
  -- Totals 1, 0, 1: the mean is 2/3; the second step of the fork has 1/2, from two trajectories.
  local whole = found("tree", { normalize = "none", ["local"] = 0 })
  for index, wanted in ipairs { 0, 1 / 3, 0, -1 / 6, 0, -1 / 6, 1 / 3 } do expect(whole[index]):near(wanted) end
  local by_step = found("tree", { normalize = "none", ["local"] = 1 })
  for index, wanted in ipairs { 0, 1 / 3, 0, -1 / 6, 0, -1 / 6, 1 / 2 } do expect(by_step[index]):near(wanted) end
  -- The same by hand for grpo: a shared step has the mean over the trajectories that take it.
  local plain = found("grpo", { normalize = "none" })
  for index, wanted in ipairs { 0, 1 / 3, 0, -1 / 6, 0, -1 / 6, 1 / 3 } do expect(plain[index]):near(wanted) end
end)

test("GiGPO compares continuations of one state", function()
  local found = advantages("gigpo", { mode = "mean", gamma = 1 })
  expect(found[2]):near(2 / 3 + 1 / 2)
  expect(found[4]):near(-1 / 3 - 1 / 2)
end)

test("inconsistent rows are refused", function()
  local function refused(change)
    local list = rows()
    change(list)
    return function() r1.rl.advantages("tree", list) end
  end
  expect(refused(function(list) list[3].shared = 7 end)):raises("has not taken this step")
  expect(refused(function(list) list[4].shared = 1 list[3].shared = nil end)):raises("shares its first steps only")
  expect(refused(function(list) list[3].mask = { 1, 1 } end)):raises("has other tokens")
  expect(function() advantages("tree", { locl = 1 }) end):raises("did you mean local?")
end)
