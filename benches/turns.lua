--- An environment without text: a row is a prompt (ids) and turns, each a response of fixed length
--- and the ids after it. The benchmark provides the data and truncates the responses.

local function append(list, more)
  table.move(more, 1, #more, #list + 1, list)
end

local env = r1.env {
  max_steps = 8,
  reset = function(task)
    return { ids = task.prompt, turns = task.turns, turn = 0, last = {} }
  end,
  step = function(state, action)
    state.turn = state.turn + 1
    state.last = action.token_ids
    append(state.ids, action.token_ids)
    append(state.ids, state.turns[state.turn].observation)
    return { done = state.turn == #state.turns }
  end,
}

return r1.recipe {
  env = env,
  context = function(state) return { token_ids = state.ids } end,
  reward = function(state)
    local sum = 0
    for _, id in ipairs(state.last) do sum = sum + id end
    return sum % 7
  end,
}
