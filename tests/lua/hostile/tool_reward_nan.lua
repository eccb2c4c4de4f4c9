-- A tool's process reward is not a number.
-- expect: env_error
-- message: returned the reward NaN
return {
  tools = { r1.tool { name = "nan", run = function() return "x", 0 / 0 end } }, -- here
  step = function()
    r1.call_tools { { name = "nan", arguments = {} } }
  end,
}
