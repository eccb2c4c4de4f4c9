-- Coroutines, which could see internal values of the host.
-- expect: env_error
-- message: undefined global `coroutine`
return {
  reset = function()
    return coroutine.wrap(function() r1.call_tools {} end)() -- here
  end,
}
