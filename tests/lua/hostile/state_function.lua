-- A function in the state.
-- expect: env_error
-- message: state.list[2].f is a function; plain data holds text, numbers, booleans and tables
return {
  reset = function(task, good)
    local state = good(task)
    state.list = { 1, { f = print } }
    return state
  end,
}
