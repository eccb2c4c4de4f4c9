--- The result of r1 data list: the published datasets.

local formats = ...

--- The first digits of a commit; other revisions in full.
local function short(revision)
  return if #revision == 40 and string.match(revision, "^%x+$") then string.sub(revision, 1, 12) else revision
end

return function(result)
  local text = ""
  for _, dataset in result.datasets do
    text ..= string.format("%-18s %s\n", dataset.name, dataset.about)
    local splits = {}
    for _, split in dataset.splits do table.insert(splits, `{split.name} {formats.thousands(split.rows)}`) end
    for _, field in {
      { "rows", table.concat(splits, ", ") },
      { "columns", dataset.columns },
      { "licence", dataset.licence },
      { "from", `{dataset.hub}@{short(dataset.revision)} ({dataset.source})` },
    } do
      text ..= string.format("%-18s   %-8s %s\n", "", field[1], field[2])
    end
  end
  return text
end
