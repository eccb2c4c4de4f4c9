-- A tool that calls itself.
-- expect: env_error
-- message: r1.call_tools: tools call tools more than 16 deep or wide
return {
  tools = { r1.tool { name = "again", run = function()
    return r1.call_tools({ { name = "again", arguments = {} } })[1].content -- here
  end } },
  step = function()
    r1.call_tools { { name = "again", arguments = {} } }
  end,
}
