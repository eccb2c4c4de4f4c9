-- A tool returns megabytes: the result is truncated, and the trajectory continues.
-- expect: terminated
-- message:
return {
  tools = { r1.tool { name = "loud", run = function() return string.rep("x", 10000000) end } },
  step = function(state, action, good)
    local result = r1.call_tools({ { name = "loud", arguments = {} } })[1]
    assert(#result.content < 300000 and string.find(result.content, "more bytes%)$"))
    return good(state, action)
  end,
}
