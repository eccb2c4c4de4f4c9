--- Format rewards: which tags a response has, how often, and in which order.
---
--- Sources: the format rewards of DeepSeek-R1 (arXiv:2501.12948), Search-R1 (arXiv:2503.09516) and
--- open-r1 (`format_reward`, `tag_count_reward`).

local format = {}

local QUANTITY = {
  [""] = function(count) return count == 1 end,
  ["?"] = function(count) return count <= 1 end,
  ["*"] = function() return true end,
  ["+"] = function(count) return count >= 1 end,
}

-- { name, quantity } of "answer", "think?", "tool_call*", "search+".
local function parse(name, tags)
  if type(tags) ~= "table" or #tags == 0 then error(name .. ": takes a list of tags such as { \"think\", \"answer\" }", 3) end
  local parsed = {}
  for _, tag in ipairs(tags) do
    local word, quantity = string.match(tag, "^([%w_%-]+)([?*+]?)$")
    if not word then error(name .. ": `" .. tostring(tag) .. "` is not a tag; write a name, and ?, * or + after it", 3) end
    parsed[#parsed + 1] = { word, quantity }
  end
  return parsed
end

-- The blocks <NAME>…</NAME> of a text in order; nil if other text, or a tag inside a block of the
-- same name, is found.
local function blocks(text)
  local found, at = {}, 1
  while true do
    at = string.find(text, "%S", at)
    if not at then return found end
    local first, last, name = string.find(text, "^<([%w_%-]+)>", at)
    if not first then return nil end
    local close = `</{name}>`
    local ending, behind = string.find(text, close, last + 1, true)
    if not ending or string.find(string.sub(text, last + 1, ending - 1), `<{name}>`, 1, true) then return nil end
    found[#found + 1] = name
    at = behind + 1
  end
end

--- 1 if a response consists of the tags' blocks in this order and nothing else, otherwise 0.
---
--- A tag is `"answer"` (once), `"think?"` (at most once), `"tool_call*"` (any number) or
--- `"search+"` (at least once).
---
--- Gamed by: empty blocks, which have the format too. Give it a small weight next to an outcome
--- reward.
function format.tags(text, tags)
  local parsed = parse("tags", tags)
  local found = text ~= nil and blocks(text)
  if not found then return 0 end
  local at = 1
  for _, tag in ipairs(parsed) do
    local count = 0
    while found[at] == tag[1] do
      count, at = count + 1, at + 1
    end
    if not QUANTITY[tag[2]](count) then return 0 end
  end
  return at > #found and 1 or 0
end

local function occurrences(text, part)
  local count, at = 0, 1
  while true do
    local first, last = string.find(text, part, at, true)
    if not first then return count end
    count, at = count + 1, last + 1
  end
end

--- The share of opening and closing tags that occur exactly once: partial credit for a format.
---
--- Gamed by: tags without content, in any order.
function format.tag_share(text, tags)
  local parsed = parse("tag_share", tags)
  local right = 0
  for _, tag in ipairs(parsed) do
    if text and occurrences(text, `<{tag[1]}>`) == 1 then right += 1 end
    if text and occurrences(text, `</{tag[1]}>`) == 1 then right += 1 end
  end
  return right / (2 * #parsed)
end

return format
