-- Assertions of tests (r1 test): expect(value):equals(other) and others.

local fail, show = ... -- host: fails the test with expected and actual value; formats a value

local Expectation = {}
Expectation.__index = Expectation

local function same(a, b, depth)
  if a == b then return true end
  if type(a) ~= "table" or type(b) ~= "table" or depth > 100 then return false end
  for key, value in next, a do
    if not same(value, b[key], depth + 1) then return false end
  end
  for key in next, b do
    if a[key] == nil then return false end
  end
  return true
end

--- Equality; tables are compared entry by entry.
function Expectation:equals(other)
  if not same(self.value, other, 0) then fail("expected " .. show(other) .. ", got " .. show(self.value), other, self.value) end
  return self
end

function Expectation:differs(other)
  if same(self.value, other, 0) then fail("expected anything but " .. show(other)) end
  return self
end

--- A number with at most `tolerance` (1e-9) difference.
function Expectation:near(other, tolerance)
  local value = self.value
  if type(value) ~= "number" or not (math.abs(value - other) <= (tolerance or 1e-9)) then
    fail("expected a number near " .. show(other) .. ", got " .. show(value))
  end
  return self
end

--- A text that contains another, or a list that contains an equal item.
function Expectation:contains(part)
  local value = self.value
  if type(value) == "string" and type(part) == "string" then
    if string.find(value, part, 1, true) then return self end
  elseif type(value) == "table" then
    for _, item in next, value do
      if same(item, part, 0) then return self end
    end
  end
  fail("expected " .. show(part) .. " in " .. show(value))
end

--- A text that matches a Lua pattern.
function Expectation:matches(pattern)
  if type(self.value) ~= "string" or not string.find(self.value, pattern) then
    fail("expected a text like " .. show(pattern) .. ", got " .. show(self.value))
  end
  return self
end

--- A function that raises an error whose message contains `text`.
function Expectation:raises(text)
  if type(self.value) ~= "function" then fail("raises: expected a function, got " .. show(self.value)) end
  local fine, why = pcall(self.value)
  if fine then fail("expected an error" .. (text and " with " .. show(text) or "") .. ", and there was none") end
  why = tostring(why)
  if text ~= nil and not string.find(why, text, 1, true) then
    fail("expected an error with " .. show(text) .. ", got " .. show(why), text, why)
  end
  return self
end

local function expect(value)
  return setmetatable({ value = value }, Expectation)
end

return expect, Expectation
