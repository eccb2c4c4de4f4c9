--- The reward of Agent-R1's question answering (`qa_em_and_format`, its generation before the
--- step-level MDP): format and answer in one number from -1 to 1.
---
--- Source: github.com/AgentR1/Agent-R1, branch `legacy`. Two differences that it has to
--- `exact_match`: the answer counts if a reference is a *substring* of it, also within a word, and
--- a reference elsewhere in the last reply counts 0.2. tests/golden/rewards has numbers of the
--- original.

local qa = require("@r1/rewards/qa")

local qa_format = {}

local function count(text, tag)
  local _, found = string.gsub(text, tag, "")
  return found
end

-- Whether a text is `<think>…</think>…<NAME>…</NAME>`. `$` of Python also matches before a final
-- line break.
local function is_block(text, name)
  return string.find(text, `^<think>.-</think>.-<{name}>.-</{name}>\n?$`) ~= nil
end

local function contains(text, references)
  local normal = qa.normalize(text)
  for _, reference in ipairs(references) do
    if string.find(normal, qa.normalize(reference), 1, true) then return true end
  end
  return false
end

--- The score, and its parts `{ format =, answer =, acc = }`.
---
--- `replies` has the texts of the policy's replies in order, or messages of which those with the
--- role `assistant` count. Each reply but the last has 0.5 for
--- `<think>…</think>…<tool_call>…</tool_call>` and nothing else, with each tag once; the last 0.5
--- for `<think>…</think>…<answer>…</answer>`; `format` is their sum, at most 1. `answer` is 1 if a
--- reference is in the first `<answer>` of the last reply, 0.2 if it is elsewhere in that reply,
--- otherwise 0. The score is `format - 1`, plus `answer` if `format` is at least 0.5.
---
--- Gamed by: answers that list candidates, and an additional well-formed call, which is worth as
--- much as half of the format. A reference of articles and punctuation only (`A`) is in every
--- answer, as in the original.
function qa_format.qa_em_and_format(replies, references)
  r1.reference(references, "qa_em_and_format")
  if type(references) ~= "table" then references = { tostring(references) } end
  local texts = {}
  for _, reply in ipairs(replies) do
    if type(reply) == "string" then
      texts[#texts + 1] = reply
    elseif reply.role == "assistant" then
      texts[#texts + 1] = reply.content or ""
    end
  end
  if #texts == 0 then return -1, { format = 0, answer = 0, acc = 0 } end
  local format = 0
  for place = 1, #texts - 1 do
    local text = texts[place]
    local once = true
    for _, tag in ipairs { "<think>", "</think>", "<tool_call>", "</tool_call>" } do once = once and count(text, tag) == 1 end
    if once and is_block(text, "tool_call") then format += 0.5 end
  end
  local last = texts[#texts]
  if is_block(last, "answer") then format += 0.5 end
  format = math.min(format, 1)
  local given = string.match(last, "<answer>(.-)</answer>")
  local acc = given ~= nil and contains(given, references)
  local answer = acc and 1 or contains(last, references) and 0.2 or 0
  return format - 1 + (format >= 0.5 and answer or 0), { format = format, answer = answer, acc = acc and 1 or 0 }
end

return qa_format
