-- os and io.
-- expect: env_error
-- message: undefined global `os`
return {
  reset = function()
    assert(not pcall(function() return io.open("/etc/passwd") end))
    return os.exit(1) -- here
  end,
}
