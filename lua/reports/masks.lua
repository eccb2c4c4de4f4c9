--- The result of r1 check --masks, and of :tokens of r1 repl: tokens with their origin, and below
--- each sampled token its advantage, where it changes.

local formats = ...

--- Columns of a line of tokens.
local WIDTH = 100

--- Line ends and control characters as symbols, so that columns stay aligned.
local function visible(text)
  local characters = {}
  for _, code in utf8.codes(text) do
    if code == 0x0A then
      code = 0x23CE
    elseif code == 0x09 then
      code = 0x21E5
    elseif code < 0x20 or (code >= 0x7F and code < 0xA0) then
      code = 0x2400 + code % 0x20
    end
    table.insert(characters, utf8.char(code))
  end
  return table.concat(characters)
end

--- A token without colour: [sampled], <special>, or plain context.
local function marked(token, text)
  if token.sampled then return `[{text}]` end
  if token.special and string.sub(text, 1, 1) ~= "<" then return `<{text}>` end
  return text
end

local function painted(token)
  local text = visible(token.text)
  if not formats.colour then return marked(token, text) end
  local code = if token.sampled
    then if token.special then "30;43" else "30;42"
    else if token.special then "33" else "2"
  return `\27[{code}m{text}\27[0m`
end

local function legend()
  return table.concat({
    painted { text = "sampled by the policy: trained on", sampled = true },
    painted { text = "written by the environment: context" },
    painted { text = "special", special = true },
  }, ", ")
end

--- A row as lines of tokens; with `advantages`, changed advantages below.
local function lines_of(row, advantages)
  local text, tokens, below, used, marks, last = "", "", "", 0, 0, nil
  local function flush()
    text ..= tokens .. "\n" .. (if below == "" then "" else below .. "\n")
    tokens, below, used, marks = "", "", 0, 0
  end
  for _, token in row do
    local shown = visible(token.text)
    local width = utf8.len(if formats.colour then shown else marked(token, shown))
    local advantage = if token.sampled and advantages then token.advantage else nil
    local mark = if advantage and advantage ~= last then string.format("%+.2f", advantage) else ""
    if used + width > WIDTH and used > 0 then flush() end
    if mark ~= "" then
      -- Two advantages are separated by at least one column.
      local gap = if marks > used then 1 else used - marks
      below ..= string.rep(" ", gap) .. mark
      marks += gap + #mark
    end
    tokens ..= painted(token)
    used += width
    last = advantage
  end
  flush()
  return text
end

--- A conversation of supervised training.
local function example(trajectory)
  local sampled, all, text = 0, 0, ""
  for _, row in trajectory.rows do
    for _, token in row do
      all += 1
      if token.sampled then sampled += 1 end
    end
    text ..= lines_of(row, false)
  end
  return `\nrow {trajectory.id}: {sampled} of {all} tokens are trained on\n{text}`
end

local function plural(count, word) return `{count} {word}{if count == 1 then "" else "s"}` end

local function rollout(trajectory)
  local fork = trajectory.fork
  local forked = if fork then `, forked from {fork.parent} after {fork.step}` else ""
  local steps, rows = plural(trajectory.steps, "step"), plural(#trajectory.rows, "row")
  local reward = formats.signed(trajectory.reward)
  local text = `\ntrajectory {trajectory.id}: {trajectory.status}, reward {reward}, {steps} in {rows}{forked}\n`
  for _, row in trajectory.rows do text ..= lines_of(row, true) end
  return text
end

return function(result)
  -- A prompt of r1 repl.
  if result.prompt then
    return `{legend()}\n{lines_of(result.prompt, false)}{#result.prompt} tokens, {result.sampled} of them sampled; `
      .. `the budget is {result.budget}, the context holds {result.max_context}\n`
  end
  local text, supervised = "", false
  for _, trajectory in result.trajectories do
    local is_example = trajectory.status == "example"
    text ..= if is_example then example(trajectory) else rollout(trajectory)
    supervised = supervised or is_example
  end
  local below = if supervised then "" else "; below each sampled token its advantage, where it changes"
  return `{legend()}{below}\n{text}`
end
