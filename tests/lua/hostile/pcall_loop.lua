-- while true do pcall(…) end: errors are caught for ever.
-- expect: script_limit
-- says: reset used more than 0.1 s of CPU time
return {
  reset = function()
    while true do pcall(function() while true do end end) end -- here
  end,
}
