-- No observation.
-- expect: env_error
-- message: context returned nil; context must return messages, text or { token_ids = { … } }
return {
  context = function()
  end,
}
