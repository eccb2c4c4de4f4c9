--- One step that waits 0.1 s for a tool.

local slow = r1.tool {
  name = "slow",
  run = function()
    r1.sleep(0.1)
    return "done"
  end,
}

return r1.recipe {
  env = r1.env {
    tools = { slow },
    reset = function()
      return { messages = { r1.user("Wait.") } }
    end,
    step = function()
      return { done = r1.call_tools({ { name = "slow" } })[1].ok }
    end,
  },
  data = { train = r1.data.generate { count = 1, row = function() return {} end } },
}
