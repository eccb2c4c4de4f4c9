-- More tokens than the context holds.
-- expect: env_error
-- message: context returned 10017 tokens and its budget is 128
return {
  context = function()
    return { r1.user(string.rep("many words ", 2000)) }
  end,
}
