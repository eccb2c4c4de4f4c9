-- The error handler of xpcall does not end.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    while true do
      xpcall(error, function() while true do end end, "x")
    end
  end,
}
