-- loadstring and similar functions.
-- expect: env_error
-- message: undefined global `loadstring`
return {
  reset = function()
    pcall(function() load("x = 1")() end)
    pcall(function() dofile("/etc/passwd") end)
    return loadstring("while true do end")() -- here
  end,
}
