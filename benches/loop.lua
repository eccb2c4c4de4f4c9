--- Loops, calls and table accesses, without host functions.
local function work(n)
  local list, sum = {}, 0
  for k = 1, 1000 do list[k] = k end
  local function add(a, b) return (a + b) % 1000003 end
  for k = 1, n do
    sum = add(sum, list[k % 1000 + 1])
    if sum % 7 == 0 then list[k % 1000 + 1] = sum end
  end
  return sum
end
