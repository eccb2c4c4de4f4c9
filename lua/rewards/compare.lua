--- Comparison of values for the rewards of `@r1/rewards`: numbers that are written as text, and
--- tolerances that accept no wrong whole number.

local compare = {}

--- Whole numbers below this are exact in a double.
local EXACT = 2 ^ 53

--- What a value is as a number, or nil if it does not read as one: a number, or for a whole number
--- of 2^53 or more text with its digits. Separators of thousands (`1,234`) are read. Infinite
--- numbers (`1e999`), and words that `tonumber` reads (`nan`, `0x10`), are not numbers.
function compare.number(value)
  if type(value) == "string" then
    local text = string.gsub(string.match(value, "^%s*(.-)%s*$"), ",(%d%d%d)%f[%D]", "%1")
    local sign, digits = string.match(text, "^([-+]?)0*(%d+)$")
    if digits and #digits > 15 then return (sign == "-" and "-" or "") .. digits end
    value = string.match(text, "^[-+]?%d*%.?%d+[eE]?[-+]?%d*$") and tonumber(text)
  end
  if type(value) ~= "number" or value ~= value or math.abs(value) == math.huge then return nil end
  local is_long = value % 1 == 0 and math.abs(value) >= EXACT
  return is_long and string.format("%.0f", value) or value
end

--- Whether two numbers are equal up to a relative tolerance. Without one it is 1e-6, and whole
--- numbers are compared exactly: 1000001 is not 1000000.
function compare.near(a, b, tolerance)
  if a == b then return true end
  if tolerance == nil and a % 1 == 0 and b % 1 == 0 and math.max(math.abs(a), math.abs(b)) < EXACT then return false end
  local room = (tolerance or 1e-6) * math.max(1, math.abs(a), math.abs(b))
  return math.abs(a - b) <= room and room < math.huge
end

return compare
