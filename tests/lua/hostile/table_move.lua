-- table.move of two thousand million elements that are not there.
-- expect: env_error
-- says: table.move: 2147483646 elements are too many
return {
  reset = function()
    return table.move({}, 1, 2147483646, 2) -- here
  end,
}
