-- The same, caught with pcall in an endless loop.
-- expect: tool_timeout
-- message: step waited for a tool longer than limits.wait = 0.5 s
return {
  tools = { r1.tools.rhai { operations = 100000000000, timeout = 1 } },
  step = function()
    while true do pcall(r1.call_tools, { { name = "rhai", arguments = { code = "loop { }" } } }) end
  end,
}
