-- An error that is a table with a cycle.
-- expect: env_error
-- says: a table
return {
  reset = function()
    local t = {}
    t.t = t
    error(t) -- here
  end,
}
