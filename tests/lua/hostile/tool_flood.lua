-- A million calls at once.
-- expect: env_error
-- message: r1.call_tools: 1000000 calls are more than 1024
return {
  tools = { r1.tool { name = "calm", run = function() return "x" end } },
  step = function()
    local calls = table.create(1000000, { name = "calm", arguments = {} })
    r1.call_tools(calls) -- here
  end,
}
