-- An endless loop in the context policy.
-- expect: script_limit
-- message: context used more than 0.1 s of CPU time
return {
  context = function()
    repeat until false -- here
  end,
}
