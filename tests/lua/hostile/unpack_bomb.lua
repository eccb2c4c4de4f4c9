-- A million values on the stack.
-- expect: env_error
-- message: too many results to unpack
return {
  reset = function()
    return { n = select("#", table.unpack(table.create(1100000, 1))) } -- here
  end,
}
