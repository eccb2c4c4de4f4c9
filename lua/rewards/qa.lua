--- Rewards for short answers: exact match, F1 and substring match, with the normalisation of SQuAD.
---
--- Sources: the evaluation scripts of SQuAD 1.1 (Rajpurkar et al., arXiv:1606.05250) and HotpotQA
--- (Yang et al., arXiv:1809.09600); Search-R1's substring match (`cover_exact_match` of others).
--- Every function takes the prediction (text, or nil for a missing one) and the references: a text,
--- or a list of texts of which the best counts.

local check = require("@r1/options")

local qa = {}

local function is_text(value) return type(value) == "string" or type(value) == "number" end

local function list(references, name)
  if is_text(references) then return { tostring(references) } end
  if type(references) ~= "table" then
    error(name .. ": references must be a text or a list of texts, got a " .. type(references), 3)
  end
  -- Every answer would be wrong for `{ target = { "a" } }`.
  for key, reference in pairs(references) do
    if type(key) ~= "number" then
      error(`{name}: references must be a text or a list of texts, got a table with the name \`{key}\``, 3)
    elseif not is_text(reference) and reference ~= r1.json.null then
      error(`{name}: references[{key}] must be a text, got a {type(reference)}`, 3)
    end
  end
  return references
end

-- The largest value of `score` over the references; 0 without a prediction.
local function best(name, prediction, references, score)
  r1.reference(references, name)
  if prediction == nil then return 0 end
  if type(prediction) ~= "string" and type(prediction) ~= "number" then
    error(name .. ": the prediction must be a text, got a " .. type(prediction), 3)
  end
  local most = 0
  for _, reference in ipairs(list(references, name)) do
    most = math.max(most, score(tostring(prediction), tostring(reference)))
  end
  return most
end

-- Python's `\w` has no combining accents, and its white space includes U+001C to U+001F.
local ARTICLE = "(^|[^\\p{L}\\p{N}_])(?:a|an|the)($|[^\\p{L}\\p{N}_])"
local SPACE = "[\\s\\x1c-\\x1f]+"

--- SQuAD's normalisation: lower case, no ASCII punctuation, no articles, single spaces.
function qa.normalize(text)
  text = string.gsub(r1.text.lower(text), "[%p]", "")
  -- Twice: neighbouring articles share the character between them.
  text = r1.re.replace(text, ARTICLE, "$1 $2")
  text = r1.re.replace(text, ARTICLE, "$1 $2")
  return (string.gsub(r1.re.replace(text, SPACE, " "), "^ ?(.-) ?$", "%1"))
end

-- The normalised texts. Without their articles and punctuation some references are empty ("A",
-- "The The"), and every empty answer would equal them: then both keep their words.
local function normal(prediction, reference)
  local own = qa.normalize(reference)
  if own ~= "" then return qa.normalize(prediction), own end
  local function plain(text)
    local bare = string.gsub(text, "[%p]", "")
    text = r1.text.lower(string.find(bare, "%S") and bare or text)
    return (string.gsub(r1.re.replace(text, SPACE, " "), "^ ?(.-) ?$", "%1"))
  end
  return plain(prediction), plain(reference)
end

--- 1 if the normalised prediction equals a normalised reference, otherwise 0.
---
--- Gamed by: nothing but the answer format; a long response never matches, so give the extracted
--- answer and not the whole response.
function qa.exact_match(prediction, references)
  return best("exact_match", prediction, references, function(a, b)
    a, b = normal(a, b)
    return a == b and 1 or 0
  end)
end

local function counts(text)
  local tokens, total = {}, 0
  for token in string.gmatch(text, "%S+") do
    tokens[token] = (tokens[token] or 0) + 1
    total += 1
  end
  return tokens, total
end

local CLOSED = { yes = true, no = true, noanswer = true }

--- F1 of the normalised tokens of prediction and reference, as multisets.
---
--- `options.closed` (default true): `yes`, `no` and `noanswer` equal nothing but themselves, as in
--- HotpotQA; SQuAD has no such rule.
---
--- Gamed by: answers that list candidates (a partial match of each still has a positive score), and
--- by repeating frequent words of references.
function qa.f1(prediction, references, options)
  local closed = check("f1", options, { "closed" }).closed ~= false
  return best("f1", prediction, references, function(a, b)
    a, b = normal(a, b)
    if closed and a ~= b and (CLOSED[a] or CLOSED[b]) then return 0 end
    local found, predicted = counts(a)
    local wanted, total = counts(b)
    local common = 0
    for token, count in pairs(found) do
      common += math.min(count, wanted[token] or 0)
    end
    if common == 0 then return 0 end
    local precision, recall = common / predicted, common / total
    return 2 * precision * recall / (precision + recall)
  end)
end

--- 1 if the normalised prediction contains a normalised reference as whole words, otherwise 0.
---
--- Gamed by: long answers that enumerate every candidate. Use it for evaluation, or with a length
--- penalty.
function qa.substring_match(prediction, references)
  return best("substring_match", prediction, references, function(a, b)
    a, b = normal(a, b)
    return b ~= "" and string.find(" " .. a .. " ", " " .. b .. " ", 1, true) ~= nil and 1 or 0
  end)
end

return qa
