-- os and io.
-- expect: env_error
-- says: undefined global `os`
return {
  reset = function()
    assert(not pcall(function() return io.open("/etc/passwd") end))
    return os.exit(1) -- here
  end,
}
