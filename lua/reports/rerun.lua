--- A step of r1 rerun, or with `last` the end of its result: what differs from the stored run.

local formats = ...

local function number(value) return if value then string.format("%.7g", value) else "none" end

--- The line of a comparison that differs.
local function line(name, it)
  local first = it.first
  local place = if first.step then `{first.of}, step {first.step}, token {first.index}` else `{first.of} [{first.index}]`
  local sizes = `{it.differ} of {it.count} differ, by {number(it.largest)} at most`
  return `  {name}: {sizes}; first {place}: {number(first.stored)} stored, {number(first.repeated)} repeated`
end

return function(result)
  if result.last then
    if result.first then
      return `The first difference is in step {result.first.step}: {result.first.name}.\n`
    end
    return `{formats.counted(result.steps, "step", "steps")} repeated: every number is equal.\n`
  end
  local equal, lines = {}, {}
  for _, name in result.order do
    local it = result.compared[name]
    if it.first then table.insert(lines, line(name, it)) else table.insert(equal, name) end
  end
  local head = `step {result.step}, {formats.counted(result.trajectories, "trajectory", "trajectories")}`
  if #equal > 0 then head ..= `: equal {table.concat(equal, ", ")}` end
  table.insert(lines, 1, head)
  return table.concat(lines, "\n") .. "\n"
end
