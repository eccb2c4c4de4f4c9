-- table.move of two billion missing elements.
-- expect: env_error
-- message: table.move: 2147483646 elements are too many
return {
  reset = function()
    return table.move({}, 1, 2147483646, 2) -- here
  end,
}
