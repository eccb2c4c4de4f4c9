--- The result of r1 traj grep: lines with a match.

local formats = ...

return function(result)
  local text = ""
  for _, found in result.matches do
    local origin = formats.paint("magenta", found.id) .. formats.paint("dim", ` {found.message} {found.role}`)
    text ..= `{origin}  {found.before}{formats.paint("red.bold", found.match)}{found.after}\n`
  end
  if result.quiet then return text end
  local counts = result.counts
  local lines = formats.counted(counts.lines, "line", "lines")
  local total = formats.counted(counts.total, "trajectory", "trajectories")
  local more = if counts.shown < counts.lines then `; the first {counts.shown} are shown, -n sets how many` else ""
  return text .. `{if text == "" then "" else "\n"}{lines} in {formats.thousands(counts.trajectories)} of {total}{more}\n`
end
