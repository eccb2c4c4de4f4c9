-- A character class of a megabyte, searched for every character of a text.
-- expect: env_error
-- message: string.find: a pattern of 1000002 bytes over a text of 1000000 is too much work
return {
  reset = function()
    return string.find(string.rep("a", 1000000), "[" .. string.rep("b", 1000000) .. "]") -- here
  end,
}
