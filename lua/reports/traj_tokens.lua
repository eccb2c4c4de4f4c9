--- The result of r1 traj show --tokens: every token with its origin, and below each sampled token a
--- number.

local formats = ...

--- Columns of a line of tokens.
local WIDTH = 100

--- Formats of numbers: an advantage has a sign.
local PATTERNS = { advantage = "%+.2f", value = "%+.2f", ["return"] = "%+.2f", mismatch = "%+.3f" }

--- Background of a number from bad (red) to good (green), in the colours of 256-colour terminals.
local SCALE = { 160, 166, 172, 178, 142, 106, 70, 34 }
--- The numbers at both ends of the scale.
local RANGES = {
  advantage = { -2, 2 }, logprob = { -5, 0 }, mismatch = { 0.5, 0 }, entropy = { 3, 0 }, value = { -1, 1 },
  ["return"] = { -1, 1 }, reference = { -5, 0 },
}

--- Line ends and tabs as symbols, so that columns stay aligned.
local function visible(text) return (string.gsub(string.gsub(text, "\n", "⏎"), "\t", "⇥")) end

local function number_of(token, by)
  return if token.sampled then token[by] else nil
end

local function background(by, number)
  local range = RANGES[by]
  -- A difference is bad in both directions.
  local value = if by == "mismatch" then math.abs(number) else number
  local share = math.clamp((value - range[1]) / (range[2] - range[1]), 0, 1)
  return SCALE[1 + math.floor(share * (#SCALE - 1) + 0.5)]
end

--- [trained], (sampled, but not in the loss), plain context, <special>.
local function marked(token, text)
  if token.sampled then return if token.trained == false then `({text})` else `[{text}]` end
  if token.special and string.sub(text, 1, 1) ~= "<" then return `<{text}>` end
  return text
end

local function painted(token, text, by)
  if not formats.colour then return marked(token, text) end
  local number = number_of(token, by)
  local code = if not token.sampled then (if token.special then "33" else "2")
    elseif token.trained == false then "30;47"
    elseif number then `30;48;5;{background(by, number)}`
    else "30;42"
  return `\27[{code}m{text}\27[0m`
end

local function lines_of(row, by)
  local text, tokens, below, used, marks, last = "", "", "", 0, 0, nil
  local function flush()
    text ..= tokens .. "\n" .. (if below == "" then "" else below .. "\n")
    tokens, below, used, marks = "", "", 0, 0
  end
  for _, token in row do
    local shown = visible(token.text)
    local width = utf8.len(if formats.colour then shown else marked(token, shown)) or #shown
    local number = number_of(token, by)
    local mark = if number and number ~= last then string.format(PATTERNS[by] or "%.2f", number) else ""
    -- A token begins after the number of the one before.
    local gap = if mark ~= "" and marks > 0 and marks + 1 > used then marks + 1 - used else 0
    if used + gap + math.max(width, #mark) > WIDTH and used > 0 then
      flush()
      gap = 0
    end
    tokens ..= string.rep(" ", gap)
    used += gap
    if mark ~= "" then
      below ..= string.rep(" ", used - marks) .. mark
      marks = used + #mark
    end
    tokens ..= painted(token, shown, by)
    used += width
    last = number
  end
  flush()
  return text
end

return function(result)
  local by = result.by
  local sampled, stored = 0, 0
  for _, row in result.rows do
    for _, token in row do
      if token.sampled then sampled += 1 end
      if number_of(token, by) then stored += 1 end
    end
  end
  local heading = `trajectory {result.id}: {result.status}, reward {formats.signed(result.reward)}`
  local text = formats.paint("bold", heading) .. "\n"
  local legend = {
    painted({ sampled = true }, "sampled", by),
    painted({ sampled = true, trained = false }, "sampled, not in the loss", by),
    painted({}, "context", by),
    painted({ special = true }, "special", by),
  }
  text ..= table.concat(legend, ", ")
  text ..= if stored > 0 then `; below: {by}, where it changes\n` else `; {by} is not stored\n`
  for _, row in result.rows do text ..= "\n" .. lines_of(row, by) end
  return text .. `\n{formats.counted(sampled, "sampled token", "sampled tokens")} in {formats.counted(#result.rows, "row", "rows")}\n\n`
end
