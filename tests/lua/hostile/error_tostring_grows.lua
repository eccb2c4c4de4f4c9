-- An error object whose __tostring eats memory.
-- expect: script_limit | env_error
-- message:
return {
  reset = function()
    error(setmetatable({}, { __tostring = function()
      local text = "xxxxxxxxxxxxxxxx"
      while true do text = text .. text end
    end }))
  end,
}
