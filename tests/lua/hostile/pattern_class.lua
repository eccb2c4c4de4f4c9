-- A character class of a megabyte, looked through for every character of another.
-- expect: env_error
-- says: string.find: a pattern of 1000002 bytes over a text of 1000000 is too much work
return {
  reset = function()
    return string.find(string.rep("a", 1000000), "[" .. string.rep("b", 1000000) .. "]") -- here
  end,
}
