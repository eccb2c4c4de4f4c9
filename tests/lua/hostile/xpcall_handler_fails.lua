-- The error handler of xpcall fails, and so does its own handler.
-- expect: env_error
-- message: the last word
return {
  reset = function()
    local ok = xpcall(error, function() error(error) end, "x")
    local again = xpcall(error, function(e) return e() end, {})
    error(tostring(ok) .. tostring(again) .. ": the last word") -- here
  end,
}
