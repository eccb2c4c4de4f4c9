-- Coroutines, which would see the host's own marks.
-- expect: env_error
-- says: undefined global `coroutine`
return {
  reset = function()
    return coroutine.wrap(function() r1.call_tools {} end)() -- here
  end,
}
