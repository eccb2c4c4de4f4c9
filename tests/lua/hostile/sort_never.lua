-- A comparison that does not end.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    table.sort({ 3, 2, 1 }, function() while true do end end) -- here
  end,
}
