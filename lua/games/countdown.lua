--- The numbers game Countdown: a solver by enumeration and a checker, both in exact rational
--- arithmetic.
---
--- The rules are the same as in TinyZero and RAGEN: the operators + - * /, fractions allowed
--- between steps, and each number used exactly once (with `all = false`: at most once).

local check = require("@r1/options")

local countdown = {}

--- Largest numerator and denominator: products up to it are exact in a double.
local MOST = 2 ^ 53

local function gcd(a, b)
  while b ~= 0 do a, b = b, a % b end
  return math.abs(a)
end

--- A product of whole numbers; nil if it is not exact.
local function product(a, b)
  local value = a * b
  return math.abs(value) <= MOST and value or nil
end

--- A rational in lowest terms as { numerator, denominator }; nil if it is undefined or not exact.
local function rational(numerator, denominator)
  if denominator == 0 or math.abs(numerator) > MOST or math.abs(denominator) > MOST then return nil end
  local divisor = gcd(numerator, denominator)
  if denominator < 0 then divisor = -divisor end
  return { numerator / divisor, denominator / divisor }
end

--- a + sign * b over the least common denominator. Every intermediate value is exact, or the sum is
--- nil: a rounded product could cancel to a small number.
local function sum(a, b, sign)
  local divisor = gcd(a[2], b[2])
  local left, right = product(a[1], b[2] / divisor), product(b[1], a[2] / divisor)
  local below = product(a[2], b[2] / divisor)
  return left and right and below and rational(left + sign * right, below)
end

--- a * b, reduced before it is multiplied.
local function times(a, b)
  if a[2] == 0 or b[2] == 0 then return nil end
  local one, other = math.max(gcd(a[1], b[2]), 1), math.max(gcd(b[1], a[2]), 1)
  local above, below = product(a[1] / one, b[1] / other), product(a[2] / other, b[2] / one)
  return above and below and rational(above, below)
end

local OPERATORS = {
  ["+"] = function(a, b) return sum(a, b, 1) end,
  ["-"] = function(a, b) return sum(a, b, -1) end,
  ["*"] = times,
  ["/"] = function(a, b) return times(a, { b[2], b[1] }) end,
}

--- The value of an expression as { numerator, denominator }, and the list of its numbers. nil and a
--- reason for anything else than whole numbers, + - * /, a sign, and parentheses.
function countdown.evaluate(text)
  local at, numbers = 1, {}
  local read_sum

  local function peek() return string.match(text, "^%s*(%S)", at) end
  -- The next character for a message: a byte is not one.
  local function character() return string.match(text, "^%s*([%z\1-\127\194-\244][\128-\191]*)", at) or peek() end
  local function take() at = select(2, string.find(text, "^%s*%S", at)) + 1 end

  local function atom(depth)
    local digits, after = string.match(text, "^%s*(%d+)()", at)
    if digits then
      at = after
      if #digits > 15 then return nil, "a number is too long" end
      numbers[#numbers + 1] = tonumber(digits)
      return { tonumber(digits), 1 }
    end
    local next_one = peek()
    if next_one == nil then return nil, "the expression ends early" end
    if depth > 100 then return nil, "the expression is nested too deeply" end
    if next_one == "-" or next_one == "+" then
      take()
      local value, why = atom(depth + 1)
      return value and { next_one == "-" and -value[1] or value[1], value[2] }, why
    end
    if next_one ~= "(" then return nil, `"{character()}" is not part of an expression` end
    take()
    local value, why = read_sum(depth + 1)
    if value == nil then return nil, why end
    if peek() ~= ")" then return nil, "a parenthesis is not closed" end
    take()
    return value
  end

  local function chain(operators, operand)
    return function(depth)
      local value, why = operand(depth)
      while value do
        local operator = peek()
        if operator == nil or not string.find(operators, operator, 1, true) then break end
        take()
        local right
        right, why = operand(depth)
        if right == nil then return nil, why end
        value, why = OPERATORS[operator](value, right), "a division by zero, or a number that is too large"
      end
      return value, why
    end
  end
  read_sum = chain("+-", chain("*/", atom))

  local value, why = read_sum(0)
  if value == nil then return nil, why end
  if peek() ~= nil then return nil, `"{character()}" is not part of an expression` end
  return value, numbers
end

--- Whether `used` are exactly the given numbers (with `all = false`: at most each of them once).
local function allowed(used, given, all)
  local left = table.clone(given)
  for _, number in ipairs(used) do
    local place = table.find(left, number)
    if place == nil then return false end
    table.remove(left, place)
  end
  return all == false or #left == 0
end

--- Grades an answer: `parsed` (it is an expression), `numbers` (it uses the given numbers) and
--- `solved` (also its value is the target) as booleans, and `why` it was not parsed.
---
--- Option: `all` (true: each number exactly once; false: at most once).
function countdown.grade(text, numbers, target, options)
  options = check("grade", options, { "all" })
  if text == nil then return { parsed = false, numbers = false, solved = false, why = "there is no answer" } end
  local value, used = countdown.evaluate(text)
  if value == nil then return { parsed = false, numbers = false, solved = false, why = used } end
  local fits = allowed(used, numbers, options.all)
  return { parsed = true, numbers = fits, solved = fits and value[1] == target * value[2] }
end

--- The first expression with this value, by enumeration of all pairs and operators; nil if there
--- is none.
---
--- Options: `operators` ("+-*/"), `all` (true: all numbers must be used).
function countdown.solve(numbers, target, options)
  options = check("solve", options, { "operators", "all" })
  local operators = options.operators or "+-*/"
  for operator in string.gmatch(operators, ".") do
    if OPERATORS[operator] == nil then error(`solve: unknown operator "{operator}"; it takes + - * /`, 2) end
  end

  local function search(items)
    for _, item in ipairs(items) do
      local whole = #items == 1 or options.all == false
      if whole and item.value[1] == target and item.value[2] == 1 then return item.text end
    end
    for i = 1, #items do
      for j = 1, #items do
        local a, b = items[i], items[j]
        for operator in string.gmatch(i ~= j and operators or "", ".") do
          -- a + b and a * b are tried in one order only.
          local ordered = i < j or operator == "-" or operator == "/"
          local value = ordered and OPERATORS[operator](a.value, b.value)
          if value then
            local rest = { { value = value, text = `({a.text} {operator} {b.text})` } }
            for k, item in ipairs(items) do
              if k ~= i and k ~= j then rest[#rest + 1] = item end
            end
            local found = search(rest)
            if found then return found end
          end
        end
      end
    end
    return nil
  end

  local items = {}
  for k, number in ipairs(numbers) do items[k] = { value = { number, 1 }, text = tostring(number) } end
  local found = search(items)
  return found and (string.gsub(found, "^%((.*)%)$", "%1"))
end

return countdown
