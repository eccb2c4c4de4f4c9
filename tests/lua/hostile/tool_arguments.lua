-- Arguments that spell out more than any memory holds.
-- expect: env_error | script_limit
-- says:
return {
  tools = { r1.tool { name = "calm", run = function() return "x" end } },
  step = function()
    local bomb = { "x" }
    for _ = 1, 60 do bomb = { bomb, bomb } end
    r1.call_tools { { name = "calm", arguments = { x = bomb } } }
  end,
}
