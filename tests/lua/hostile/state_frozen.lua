-- A frozen state, which step then changes.
-- expect: env_error
-- message: attempt to modify a readonly table
return {
  reset = function(task, good)
    return table.freeze(good(task))
  end,
}
