-- %b() from every opening bracket of many.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    return string.find(string.rep("(", 1000000), "%b()") -- here
  end,
}
