-- Changes the records of a tool's results and makes up results.
-- expect: terminated
-- message:
return {
  tools = { r1.tool { name = "calm", run = function() return "x" end } },
  step = function(state, action, good)
    local results = r1.call_tools { { name = "calm", arguments = {} }, { error = "made up" }, { name = "nobody" } }
    for _, result in ipairs(results) do table.clear(result) end
    table.clear(results)
    action.tool_calls = setmetatable({}, { __len = function() return 1 / 0 end })
    return good(state, action)
  end,
}
