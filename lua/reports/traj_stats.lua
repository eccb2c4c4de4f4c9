--- The result of r1 traj stats: counts and distributions.

local formats = ...

local function number(name, value)
  if name == "seconds" then return formats.duration(value) end
  return if value % 1 == 0 then formats.plain(value) else formats.compact(value)
end

local function row(name, values)
  local cells = { name }
  for _, column in { "mean", "std", "lowest", "p10", "p50", "p90", "highest" } do
    table.insert(cells, number(name, values[column]))
  end
  return cells
end

local function sorted(counts)
  local names = {}
  for name in counts do table.insert(names, name) end
  table.sort(names, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a < b
  end)
  return names
end

return function(result)
  local first, last = result.steps[1], result.steps[2]
  local steps = if first == last then `step {first}` else `steps {first} to {last}`
  local all = formats.counted(result.trajectories, "trajectory", "trajectories")
  local of = if result.trajectories == result.total then "" else ` of {formats.thousands(result.total)}`
  local text = `{result.run}, {steps}: {all}{of}, {formats.counted(result.tokens, "sampled token", "sampled tokens")}\n\n`
  local rows = { { "", "mean", "std", "lowest", "p10", "p50", "p90", "highest" } }
  for _, name in result.order do
    local values = result.numbers[name]
    if values then table.insert(rows, row(name, values)) end
  end
  local parts = {}
  for name in result.reward_parts do table.insert(parts, name) end
  table.sort(parts)
  for _, name in parts do table.insert(rows, row(`reward_parts.{name}`, result.reward_parts[name])) end
  text ..= formats.grid(rows)
  for _, name in { "status", "finish_reason" } do
    local counts, items = result.counts[name], {}
    for _, value in sorted(counts) do
      local share = counts[value] / math.max(result.trajectories, 1)
      table.insert(items, string.format("%s %s (%.1f%%)", value, formats.thousands(counts[value]), 100 * share))
    end
    if #items > 0 then text ..= `\n{name}: {table.concat(items, ", ")}` end
  end
  local dropped = result.counts.dropped.dropped
  if dropped then text ..= `\n{formats.thousands(dropped)} of them in groups that trainer.filter dropped` end
  return text .. "\n"
end
