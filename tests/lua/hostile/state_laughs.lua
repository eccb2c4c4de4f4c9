-- A few tables that hold each other, and spell out 2^40 values.
-- expect: script_limit
-- says: reset
return {
  reset = function(task, good)
    local state = good(task)
    local bomb = { "ha" }
    for _ = 1, 40 do bomb = { bomb, bomb } end
    state.bomb = bomb
    return state
  end,
}
