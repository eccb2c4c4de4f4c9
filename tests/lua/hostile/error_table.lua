-- An error that is a table with a cycle.
-- expect: env_error
-- message: a table
return {
  reset = function()
    local t = {}
    t.t = t
    error(t) -- here
  end,
}
