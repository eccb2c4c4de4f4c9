-- A replacement function that does not end.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    string.gsub("aaa", "a", function() while true do end end) -- here
  end,
}
