-- A text of two GiB.
-- expect: script_limit | env_error
-- message: reset
return {
  reset = function()
    return { text = string.rep("x", 2147483647) }
  end,
}
