-- A tool returns a function.
-- expect: env_error
-- message: tool `odd` returned a function; it must return text
return {
  tools = { r1.tool { name = "odd", run = function() return print end } }, -- here
  step = function()
    r1.call_tools { { name = "odd", arguments = {} } }
  end,
}
