-- newproxy, debug, collectgarbage, _G.
-- expect: env_error
-- message: undefined global `newproxy`
return {
  reset = function()
    assert(not pcall(function() return debug.info(1, "f") end))
    assert(not pcall(function() collectgarbage("stop") end))
    assert(not pcall(function() return _G.r1 end))
    return newproxy(true) -- here
  end,
}
