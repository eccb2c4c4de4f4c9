-- Searches for globals in all reachable tables.
-- expect: env_error
-- message: undefined global
return {
  reset = function()
    local name = string.rep("x", 8000000)
    local ok, problem = pcall(function() return r1[name] end)
    assert(not ok and #tostring(problem) < 5000)
    return undefined_thing -- here
  end,
}
