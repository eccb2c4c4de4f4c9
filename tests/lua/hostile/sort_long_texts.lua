-- Sorting texts of megabytes that differ in the last letter.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    local a, b = string.rep("x", 4000000) .. "a", string.rep("x", 4000000) .. "b"
    local list = {}
    for k = 1, 5000 do list[k] = k % 3 == 0 and a or b end
    table.sort(list)
    return { messages = {} }
  end,
}
