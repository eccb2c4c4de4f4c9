-- An endless loop in reset.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    while true do end -- here
  end,
}
