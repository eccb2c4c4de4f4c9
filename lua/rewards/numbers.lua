--- Rewards for final numbers and multiple choice.
---
--- Sources: GSM8K (Cobbe et al., arXiv:2110.14168) and verl's `gsm8k` reward with its strict and
--- flexible extraction; multiple choice as in MMLU's evaluations.

local check = require("@r1/options")

local numbers = {}

local OPTIONS = { "strict", "marker" }

local NUMBER = "-?%$?%d[%d,]*%.?%d*"

-- A number without thousands separators, currency and a final point.
local function plain(text)
  text = string.gsub(text, "[,%$]", "")
  return (string.gsub(text, "%.$", ""))
end

-- The last number of a text. A minus after a letter or digit is not a sign ("3-4"), and a number
-- may begin with its point (".5").
local function last_number(text)
  local found
  for before, number in string.gmatch(" " .. text, "([^%d]-)(" .. NUMBER .. ")") do
    if string.match(before, "[^%w]%.$") or before == "." then
      number = "0." .. number
    elseif string.sub(number, 1, 1) == "-" and (string.match(before, "%w$") or before == "" and found) then
      number = string.sub(number, 2)
    end
    found = number
  end
  return found and plain(found)
end

-- Without separators and spaces of LaTeX and of signs: `10{,}000`, `1\\,000`, `- 5`, `−5`.
local function cleaned(text)
  text = string.gsub(string.gsub(text, "−", "-"), "{,}", ",")
  text = string.gsub(string.gsub(text, "\\[,!;:]", ""), "\\%$", "$")
  return (string.gsub(text, "%-%s+(%$?%.?%d)", "-%1"))
end

-- What follows or precedes the first number of an answer that has more than it: 2^3, 5 * 4, 2\pi,
-- 12:30, \sqrt{16}, x^2. A degree sign and an exponent of ten are no such signs.
local AFTER = {
  "^%s*[%^*]", "^%s*[+/:x-]%s*[%d(\\]", "^%s*×", "^%s*÷", "^%s*π", "^%(%d", "^[abknxyz]%f[%A]",
  "^%s*\\times", "^%s*\\cdot", "^%s*\\div", "^%s*\\sqrt", "^%s*\\pi", "^%s*\\l[no]", "^%s*\\[dt]?frac",
}
local BEFORE_NUMBER = {
  "\\sqrt", "√", "\\l[no]g?", "\\binom", "\\[dt]?frac", "[%^_]{?$", "%-%s*%($", "|%s*%-%s*$", "%w%s*[*/]%s*$",
}

local function any(text, patterns)
  for _, pattern in ipairs(patterns) do
    if string.find(text, pattern) then return true end
  end
  return false
end

-- The first number of a stated answer, after its last `=`: also a fraction, a mixed number, or one
-- with an exponent or with spaces between thousands. An answer that is an expression is returned
-- whole, for r1.math_equal. In a formula, `3!` is a factorial.
local function stated_number(text, is_formula)
  text = cleaned(text)
  text = string.match(text, ".*=(.*%d.*)") or text
  local before, digits, after = string.match(text, "^(.-)(%.?%d[%d,]*%.?%d*)()")
  if not digits then return nil end
  local number = plain(string.match(digits, "^%.") and "0" .. digits or digits)
  local start, above, below, last = string.match(text, "^([^%d]-)\\[dt]?frac%s*{?%s*(%-?%d+)%s*}?%s*{?%s*(%d+)%s*}?()")
  if above then
    before, number, after = start, `{above}/{below}`, last
  end
  local rest = string.sub(text, after)
  local function take(pattern)
    local found, tail = string.match(rest, pattern)
    if found then rest = tail end
    return found
  end
  if string.match(number, "^%d+$") then
    number ..= take("^(%s+%d+/%d+)(.*)") or take("^(/%d+)(.*)") or ""
  end
  if string.match(number, "^%d%d?%d?$") then
    local thousands = take("^%s(%d%d%d)%f[%D](.*)")
    while thousands do
      number ..= thousands
      thousands = take("^%s(%d%d%d)%f[%D](.*)")
    end
  end
  local exponent = take("^[eE]([+-]?%d+)%f[^%w](.*)") or take("^%s*\\times%s*10%s*%^%s*{?%s*(%-?%d+)(.*)")
  if exponent then number ..= `e{exponent}` end
  local is_degrees = string.find(rest, "^%s*%^%s*{?%s*\\circ")
  local is_factorial = is_formula and string.find(rest, "^!")
  if any(before, BEFORE_NUMBER) or is_factorial or (any(rest, AFTER) and not is_degrees) then
    return (string.gsub(string.match(text, "^%s*(.-)%s*$"), "%.+$", ""))
  end
  return (string.match(before, "%-%s*%$?$") and "-" or "") .. number
end

local function final_number(text, options)
  if text == nil then return nil end
  local after = string.match(text, ".*####%s*([^\n]*)")
  local boxed = r1.last_boxed(text)
  local answer = r1.answer(text)
  for _, part in ipairs { after or false, boxed or false, answer or false } do
    local number = part and stated_number(part, part == boxed)
    if number then return number end
  end
  if options.marker then
    local at, from = nil, 1
    while true do
      local first, last = string.find(text, options.marker, from, true)
      if not first then break end
      at, from = last + 1, last + 1
    end
    local number = at and stated_number((string.match(string.sub(text, at), "^%s*([^\n]*)")))
    if number then return number end
  end
  if options.strict then return nil end
  return last_number(text)
end

--- The final number of a response as text, or nil.
---
--- Looked for in this order: after the last `####`, in the last `\boxed{}`, in the last
--- `<answer>`, after the last `options.marker` (plain text), and, unless `options.strict`, the last
--- number of the text. A fraction is `3/4`, a power of ten `1e3`, and an answer that is more than a
--- number, such as `2^3`, the whole answer.
function numbers.final_number(text, options)
  return final_number(text, check("final_number", options, OPTIONS))
end

--- 1 if the final number of a response equals the reference, compared exactly (18 = 18.0).
---
--- The reference is a number, or a text such as GSM8K's solution, whose final number counts. It has
--- the options of `final_number`.
---
--- Gamed by: without `strict`, any last number counts, also one without an answer around it.
function numbers.gsm8k(text, reference, options)
  local answer = final_number(text, check("gsm8k", options, OPTIONS))
  r1.reference(reference, "gsm8k")
  local wanted = type(reference) == "number" and tostring(reference) or final_number(reference, {})
  if wanted == nil then error("gsm8k: the reference has no number: " .. r1.clip(reference, 80), 2) end
  return answer ~= nil and r1.math_equal(answer, wanted) and 1 or 0
end

-- A word before the letter, and signs around it: `option **C**`, `$C$`, `\\textbf{(C)}`.
local BEFORE = "(?i:(?:the\\s+)?(?:option|choice|letter)\\s*:?\\s*)?(?:\\\\(?:text|math)[a-z]*\\s*\\{|[*$(\\s])*"

-- The letter is the last group; the group before it is a word that denies it.
local CHOICE = {
  "(?i:answer|correct\\s+(?:option|choice|letter))\\s*(?:is|:)?\\s*:?\\s*" .. BEFORE .. "()([A-Z])\\)?(?:[^A-Za-z]|$)",
  "()\\(([A-Z])\\)",
  "(?:^|((?i:\\bnot|n't|\\bnor|\\bexcept|\\bthan)(?:\\s+[a-z]+){0,2})?\\s)([A-Z])[.):]?\\s*$",
  "()^\\s*([A-Z])(?:[.):]|\\s|$)",
}

--- The letter that a response chooses, or nil. `choices` is the number of choices (4).
---
--- Looked for in `\boxed{}` and `<answer>`, then after "answer is", then in parentheses, then at
--- the end, then at the beginning; the last match counts.
function numbers.chosen_letter(text, choices)
  if text == nil then return nil end
  choices = choices or 4
  local function valid(letter)
    letter = letter and string.upper(letter)
    return letter and string.byte(letter) - 64 <= choices and letter or nil
  end
  for _, part in ipairs { r1.last_boxed(text) or false, r1.answer(text) or false } do
    local letter = part and r1.re.match(part, "^\\s*" .. BEFORE .. "([A-Za-z])(?:[^A-Za-z]|$)")
    if letter then return valid(letter) end
  end
  for _, pattern in ipairs(CHOICE) do
    local found
    for _, match in ipairs(r1.re.find_all(text, pattern)) do
      found = (match[1] or "") == "" and valid(match[2]) or found
    end
    if found then return found end
  end
  return nil
end

--- 1 if a response chooses the reference's letter. `reference` is a letter, or the position from 1.
---
--- Gamed by: nothing cheaper than guessing, which has 1 in `choices`.
function numbers.multiple_choice(text, reference, choices)
  r1.reference(reference, "multiple_choice")
  if type(reference) == "number" then reference = string.char(64 + reference) end
  if type(reference) ~= "string" or not string.match(reference, "^%a$") then
    error("multiple_choice: the reference must be a letter or a position from 1, got " .. tostring(reference), 2)
  end
  return numbers.chosen_letter(text, choices) == string.upper(reference) and 1 or 0
end

return numbers
