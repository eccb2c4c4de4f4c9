-- while true do pcall(…) end: catches errors in an endless loop.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    while true do pcall(function() while true do end end) end -- here
  end,
}
