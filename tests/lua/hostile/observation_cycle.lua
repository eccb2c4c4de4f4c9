-- Messages that contain themselves.
-- expect: env_error
-- message: is nested too deeply, or contains itself
return {
  context = function()
    local message = r1.user("x")
    message.content = { message }
    return { message }
  end,
}
