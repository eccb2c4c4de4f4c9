-- A buffer of a GiB.
-- expect: script_limit | env_error
-- message: reset
return {
  reset = function()
    return { n = buffer.len(buffer.create(1073741824)) }
  end,
}
