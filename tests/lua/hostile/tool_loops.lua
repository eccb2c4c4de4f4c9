-- A tool of the script that does not end.
-- expect: script_limit
-- message: step used more than 0.1 s of CPU time
return {
  tools = { r1.tool { name = "spin", run = function() while true do end end } }, -- here
  step = function()
    r1.call_tools { { name = "spin", arguments = {} } }
  end,
}
