--- A calculator for policies: `require("@r1/calculator")`. Numbers with `+ - * / % ^`, parentheses
--- and unary signs; commas between digits are ignored.

local check = require("@r1/options")

local calculator = {}

-- A recursive descent over the text; `at` is the next character.
local function parser(text)
  local at, depth = 1, 0
  local sum

  local function skip()
    at = string.find(text, "%S", at) or #text + 1
    return string.sub(text, at, at)
  end

  local function wrong()
    local rest = string.sub(text, at, at + 9)
    error(rest == "" and "the expression ends too early" or `"{rest}" can't be computed`, 0)
  end

  local function atom()
    if skip() == "(" then
      depth += 1
      if depth > 50 then error("there are more than 50 nested parentheses", 0) end
      at += 1
      local value = sum()
      if skip() ~= ")" then error("a parenthesis is not closed", 0) end
      at, depth = at + 1, depth - 1
      return value
    end
    local digits = string.match(text, "^%d+%.?%d*", at) or string.match(text, "^%.%d+", at)
    if digits == nil then wrong() end
    at += #digits
    return tonumber(digits)
  end

  local function signed()
    local sign = skip()
    if sign ~= "-" and sign ~= "+" then
      local base = atom()
      if skip() ~= "^" and string.sub(text, at, at + 1) ~= "**" then return base end
      at += string.sub(text, at, at) == "^" and 1 or 2
      return base ^ signed()
    end
    at += 1
    local value = signed()
    return sign == "-" and -value or value
  end

  local function product()
    local value = signed()
    while true do
      local operator = skip()
      if operator ~= "*" and operator ~= "/" and operator ~= "%" then return value end
      at += 1
      local right = signed()
      if right == 0 and operator ~= "*" then error("division by zero", 0) end
      value = operator == "*" and value * right or operator == "/" and value / right or value % right
    end
  end

  function sum()
    local value = product()
    while true do
      local operator = skip()
      if operator ~= "+" and operator ~= "-" then return value end
      at += 1
      local right = product()
      value = operator == "+" and value + right or value - right
    end
  end

  return function()
    local value = sum()
    if skip() ~= "" then wrong() end
    return value
  end
end

--- The value of an expression; nil and the reason if it has none.
function calculator.evaluate(text)
  local plain = string.gsub(string.gsub(text, "(%d),(%d%d%d)", "%1%2"), "×", "*")
  if #plain > 500 then return nil, "the expression is longer than 500 characters" end
  local fine, value = pcall(parser(plain))
  if not fine then return nil, tostring(value) end
  if value ~= value or value == math.huge or value == -math.huge then return nil, "the result is not a number" end
  return value
end

--- A value as text: whole numbers without a point, others with 10 digits.
function calculator.show(value)
  if value == math.floor(value) and math.abs(value) < 2 ^ 53 then return string.format("%d", value) end
  return string.format("%.10g", value)
end

--- A tool with the parameter `expression`. Options: `name` ("calculator"), `description`, `rewards`
--- (as in r1.tool).
function calculator.tool(options)
  local given = check("calculator.tool", options, { "name", "description", "rewards" })
  return r1.tool {
    name = given.name or "calculator",
    description = given.description or "Evaluates an arithmetic expression.",
    parameters = { expression = "string" },
    rewards = given.rewards,
    run = function(arguments)
      local value, why = calculator.evaluate(arguments.expression)
      if value == nil then return nil, why end
      return calculator.show(value)
    end,
  }
end

return calculator
