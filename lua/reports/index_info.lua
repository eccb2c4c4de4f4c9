--- The result of r1 index info: what an index has.

local formats = ...

return function(result)
  local text = ""
  local function line(name, value) text ..= string.format("%-12s %s\n", name, value) end
  local manifest = result.manifest
  local counts, parts = manifest.counts, manifest.parts
  local passages = math.max(counts.passages, 1)
  line("passages", formats.thousands(counts.passages))
  line("size", `{result.size}, {result.bytes // passages} bytes per passage`)
  local sparse = parts.sparse
  if sparse then
    local bm25 = sparse.bm25
    local options = `k1 {bm25.k1}, b {bm25.b}, title boost {bm25.title_boost}`
    line("sparse", `BM25, {options}, analyzer {sparse.analyzer}`)
    line("terms", string.format("%.1f per passage", sparse.terms / passages))
  end
  local dense = parts.dense
  if dense then
    local options, graph = dense.options, dense.hnsw
    line("dense", `vectors of {dense.dimension} numbers, {dense.vectors}, {options.similarity}, pooling {options.pooling}`)
    line("graph", if graph
      then `HNSW, {graph.links} links, built with {graph.ef_construction} candidates`
      else "none: every search compares all vectors")
    line("encoder", `{dense.encoder}, SHA-256 {string.sub(dense.encoder_sha256, 1, 16)}…`)
    for _, name in { "query", "passage" } do
      local prefix = options[name .. "_prefix"]
      if prefix ~= "" then line(name, string.format("prefix %q", prefix)) end
    end
  else
    line("dense", "no vectors")
  end
  local left_out = {}
  if counts.empty > 0 then table.insert(left_out, `{counts.empty} empty`) end
  if counts.duplicates > 0 then table.insert(left_out, `{counts.duplicates} with the id of another`) end
  if #left_out > 0 then line("left out", table.concat(left_out, ", ")) end
  line("written by", `r1 {manifest.r1}, format {manifest.format}`)
  return text
end
