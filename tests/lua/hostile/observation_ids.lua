-- Token ids outside the vocabulary.
-- expect: env_error
-- message: the observation has the token id 4294967295; the vocabulary ends at
return {
  context = function()
    return { token_ids = { 1, 2, 4294967295 } }
  end,
}
