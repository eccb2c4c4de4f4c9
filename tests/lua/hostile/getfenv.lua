-- getfenv, setfenv.
-- expect: env_error
-- message: undefined global `getfenv`
return {
  reset = function()
    pcall(function() setfenv(1, {}) end)
    return { x = getfenv(0).r1 } -- here
  end,
}
