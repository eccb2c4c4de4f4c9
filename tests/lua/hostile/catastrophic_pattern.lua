-- A pattern with exponential backtracking.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    return string.find(string.rep("a", 40) .. "b", string.rep("a*", 30) .. "c") -- here
  end,
}
