-- An endless loop in step, after two good ones.
-- expect: script_limit
-- message: step used more than 0.1 s of CPU time
return {
  step = function(state, action, good)
    while state.n == 1 do end -- here
    return good(state, action)
  end,
}
