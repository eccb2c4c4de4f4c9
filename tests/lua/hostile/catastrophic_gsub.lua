-- The same in gsub, over many places, inside pcall.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    while true do pcall(string.gsub, string.rep("a", 5000), ".-.-.-.-b", "") end -- here
  end,
}
