-- A pattern that backtracks for ages.
-- expect: script_limit
-- says: reset used more than 0.1 s of CPU time
return {
  reset = function()
    return string.find(string.rep("a", 40) .. "b", string.rep("a*", 30) .. "c") -- here
  end,
}
