-- JSON nested a million deep.
-- expect: env_error
-- message: recursion limit exceeded
return {
  reset = function()
    local _, why = r1.json.decode(string.rep("[", 1000000))
    error(why) -- here
  end,
}
