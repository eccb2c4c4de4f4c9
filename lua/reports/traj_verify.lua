--- The result of r1 traj verify: what is wrong, and what can be used.

local formats = ...

local function ranges(steps)
  local text, index = {}, 1
  while index <= #steps do
    local last = index
    while steps[last + 1] == steps[last] + 1 do last += 1 end
    table.insert(text, if last == index then tostring(steps[index]) else `{steps[index]} to {steps[last]}`)
    index = last + 1
  end
  return table.concat(text, ", ")
end

return function(result)
  local summary, text = result.summary, ""
  for _, file in result.damaged do
    text ..= `{formats.paint("red", file.path)}\n`
    for _, problem in file.problems do text ..= `  {problem}\n` end
    text ..= if file.readable
      then `  its {formats.counted(file.trajectories, "trajectory", "trajectories")} can be read\n`
      else "  nothing in it can be read safely\n"
  end
  if #summary.missing > 0 then text ..= `steps without a file: {ranges(summary.missing)}\n` end
  if #summary.unfinished > 0 then
    local files = formats.counted(#summary.unfinished, "incomplete file", "incomplete files")
    text ..= `{files}: a write in progress, or one that was stopped; r1 run --resume removes them\n`
  end
  local right = summary.files - summary.damaged
  local counts = table.concat({
    formats.counted(summary.trajectories, "trajectory", "trajectories"),
    formats.counted(summary.steps, "step", "steps"),
    formats.counted(summary.tokens, "sampled token", "sampled tokens"),
  }, ", ")
  local files = formats.counted(summary.files, "file", "files")
  if summary.right then return text .. `{result.run}: {files} right, with {counts}\n` end
  text ..= `{if text == "" then "" else "\n"}{result.run}: {formats.thousands(right)} of {files} right; {counts} can be read`
  return text .. "\n"
end
