-- A few nested tables that expand to 2^40 values.
-- expect: script_limit
-- message: reset
return {
  reset = function(task, good)
    local state = good(task)
    local bomb = { "ha" }
    for _ = 1, 40 do bomb = { bomb, bomb } end
    state.bomb = bomb
    return state
  end,
}
