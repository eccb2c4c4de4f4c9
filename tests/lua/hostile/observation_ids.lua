-- Token ids that no vocabulary has.
-- expect: env_error
-- says: the observation has the token id 4294967295; the vocabulary ends at
return {
  context = function()
    return { token_ids = { 1, 2, 4294967295 } }
  end,
}
