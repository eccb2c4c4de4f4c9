--- The results of r1 data dedup and decontaminate.

local formats = ...

local function closing(result, report)
  local text = ""
  if result.out then text ..= `{result.out}: {formats.counted(result.kept, "row", "rows")}\n` end
  if report then text ..= `{report}: the report\n` end
  return text
end

local function duplicates(result, near)
  local rows = formats.counted(result.rows, "row", "rows")
  local text = `{rows}, {formats.thousands(result.equal)} equal to an earlier one`
  if near then text ..= `, {formats.thousands(result.similar)} similar to one (at least {near})` end
  return text .. "\n"
end

local function overlaps(result)
  local rows, eval_rows = formats.counted(result.rows, "row", "rows"), formats.thousands(result.eval_rows)
  local count, eval_count = formats.thousands(#result.overlaps), formats.thousands(result.eval_rows_found)
  local text = `{rows}, {count} with a {result.ngram}-gram of words of {eval_count} of {eval_rows} evaluation rows\n`
  local first = result.overlaps[1]
  if first then text ..= `  {first.place} has "{first.ngram}" of {first.eval_place}\n` end
  return text
end

return function(shown)
  local result = shown.result
  local text = if result.overlaps then overlaps(result) else duplicates(result, shown.near)
  return text .. closing(result, shown.report)
end
