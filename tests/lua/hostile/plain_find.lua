-- A plain search that compares half of the text at every place.
-- expect: env_error
-- message: is too much work
return {
  reset = function()
    local text = string.rep("a", 8000000)
    return string.find(text, string.rep("a", 4000000) .. "b", 1, true) -- here
  end,
}
