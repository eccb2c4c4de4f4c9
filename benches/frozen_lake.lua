--- FrozenLake-v1 of gymnasium, slippery, 4 x 4: an action moves in its direction or a perpendicular
--- one, each with probability 1/3.

local LAKE = "SFFFFHFHFFFHHFFG"
-- left, down, right, up, as gymnasium numbers them
local ROW, COLUMN = { 0, 1, 0, -1 }, { -1, 0, 1, 0 }

local env = r1.env {
  max_steps = 100,
  reset = function()
    return { at = 0 }
  end,
  step = function(state, action)
    local way = ((tonumber(action.text) or 0) + math.random(3) - 2) % 4 + 1
    local row, column = state.at // 4 + ROW[way], state.at % 4 + COLUMN[way]
    if row >= 0 and row < 4 and column >= 0 and column < 4 then state.at = row * 4 + column end
    local tile = string.byte(LAKE, state.at + 1)
    if tile == 71 then return { reward = 1, done = true } end
    return { done = tile == 72 }
  end,
}

return r1.recipe {
  env = env,
  context = function(state)
    return tostring(state.at)
  end,
  data = { train = r1.data.generate { count = 1, row = function() return { lake = LAKE } end } },
}
