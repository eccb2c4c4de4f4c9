-- Arguments that expand to more than the memory.
-- expect: env_error | script_limit
-- message:
return {
  tools = { r1.tool { name = "calm", run = function() return "x" end } },
  step = function()
    local bomb = { "x" }
    for _ = 1, 60 do bomb = { bomb, bomb } end
    r1.call_tools { { name = "calm", arguments = { x = bomb } } }
  end,
}
