--- The result of r1 rescore: means of both rewards, and the trajectories that change most.

local formats = ...

--- Number of trajectories that are shown.
local SHOWN = 10

local function number(value) return string.format("%+.4f", value) end

--- The mean of a part of the reward; "-" if no trajectory has it.
local function mean(pairs_of_rewards, side, part)
  local sum, count = 0, 0
  for _, it in pairs_of_rewards do
    local value = it.parts[side][part]
    if value then
      sum, count = sum + value, count + 1
    end
  end
  return if count == 0 then "-" else number(sum / count)
end

--- The trajectories whose reward changes, those with the largest changes first.
local function changed(all)
  local list = {}
  for index, it in all do
    local advantage = math.abs(it.advantage.new - it.advantage.old)
    local entry = { it = it, index = index, advantage = advantage, reward = math.abs(it.new - it.old) }
    if it.old ~= it.new then table.insert(list, entry) end
  end
  table.sort(list, function(a, b)
    if a.advantage ~= b.advantage then return a.advantage > b.advantage end
    if a.reward ~= b.reward then return a.reward > b.reward end
    return a.index < b.index
  end)
  return list
end

return function(result)
  local text, summary = "", result.summary
  local function add(more) text ..= more .. "\n" end
  local function show(rows)
    if not result.quiet then text ..= formats.grid(rows) end
  end

  local first, last = summary.steps[1], summary.steps[2]
  local steps = if first == last then `step {first}` else `steps {first} to {last}`
  local trajectories = formats.counted(summary.trajectories, "trajectory", "trajectories")
  add(`{result.run}, {steps}: {trajectories} under {result.script}\n`)
  local rows = { { "mean of", "old", "new" } }
  table.insert(rows, { "reward", number(summary.old_mean), number(summary.new_mean) })
  local names = {}
  for _, it in result.pairs do
    for _, parts in it.parts do
      for name in parts do
        if not table.find(names, name) then table.insert(names, name) end
      end
    end
  end
  table.sort(names)
  for _, name in names do
    table.insert(rows, { name, mean(result.pairs, "old", name), mean(result.pairs, "new", name) })
  end
  show(rows)

  local correlation = summary.rank_correlation
  local ranks = if correlation then string.format("%.3f", correlation) else "undefined: one side is constant"
  add(`\nrank correlation {ranks}`)
  local flips = if summary.sign_flips == 0
    then "no trajectory's advantage changes its sign"
    else `{summary.sign_flips} of {summary.trajectories} advantages change their sign`
  add(`{flips} (reward less the mean of the group)`)

  local largest = changed(result.pairs)
  if #largest == 0 then
    add("no reward changed")
  else
    rows = { { "changed most", "old", "new", "advantage", "now", "task" } }
    for index = 1, math.min(SHOWN, #largest) do
      local it = largest[index].it
      local task = formats.first(formats.lines(it.task)[1] or "", 40)
      local numbers = { number(it.old), number(it.new), number(it.advantage.old), number(it.advantage.new) }
      table.insert(rows, { it.id, numbers[1], numbers[2], numbers[3], numbers[4], task })
    end
    add("")
    show(rows)
  end
  if #result.left_out > 0 then
    add("\nleft out:")
    for _, line in result.left_out do add(`  {line}`) end
  end
  return text
end
