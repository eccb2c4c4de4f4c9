--- The result of r1 plan without the table of memory: whether it fits, the seconds of a step by
--- parts, rates, assumptions.

local formats = ...

local function gib(bytes) return string.format("%.1f GiB", bytes / 2 ^ 30) end

local function seconds(value) return string.format(if value < 0.01 then "%.2g" else "%.3g", value) end

local function memory(result)
  if not result.available_bytes then return "" end
  local place = if result.device == "the CPU" then "for each rank" else `on each {result.device}`
  local size = `{gib(result.peak_bytes)} of {gib(result.available_bytes)} {place}`
  local whole = "every rank has the whole model, its gradients and its optimiser"
  local divided = result.time.zero_stage > 0
  if result.fits then
    local ranks = if divided then `the ranks divide what trainer.zero_stage={result.time.zero_stage} says`
      else `one rank is enough, because {whole}`
    return `fits: {size}; {ranks}\n`
  end
  local text = formats.paint("red", `does not fit: {size}`) .. "\n"
  text ..= `  what reduces it: {table.concat(result.time.advice, ", ")}\n`
  return if divided then `{text}  more ranks reduce what they divide\n`
    else `{text}  more ranks do not reduce it, because {whole}\n`
end

return function(result)
  local time = result.time
  local lengths = time.lengths
  local text = "\n" .. memory(result) .. "\n"
  local rows = { { "part of a step", "s", "share", "" } }
  for _, part in time.parts do
    local share = if part.seconds < 0 then "" else string.format("%.1f%%", 100 * part.seconds / time.step_seconds)
    -- A part with negative seconds is the time that parts overlap.
    local shown = if part.seconds < 0 then "-" .. seconds(-part.seconds) else seconds(part.seconds)
    table.insert(rows, { part.part, shown, share, part.why })
  end
  table.insert(rows, { "step", seconds(time.step_seconds), "", "" })
  text ..= formats.grid(rows) .. "\n"
  local function line(name, value) text ..= string.format("%-12s %s\n", name, value) end
  local each = if lengths.turns == 1 then "" else string.format(" in %.3g steps", lengths.turns)
  line("lengths", string.format("%.0f tokens of prompt and results, %.0f sampled%s", lengths.prompt, lengths.response, each))
  line("rate", string.format("%s tokens/s, %s sequences/s on %s",
    formats.compact(time.tokens_per_second), formats.compact(time.sequences_per_second),
    formats.counted(result.world, "rank", "ranks")))
  if result.world > 1 then
    local nccl = time.exchange_with_nccl_seconds
    line("exchange", string.format("%.1f%% of the step", 100 * time.exchange_share)
      .. (if nccl then `; gradients by NCCL, which r1 does not use: {seconds(nccl)} s` else ""))
  end
  text ..= "\nassumptions\n"
  for _, assumption in time.assumptions do text ..= `  {assumption}\n` end
  return text
end
