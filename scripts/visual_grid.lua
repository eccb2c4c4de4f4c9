--- A grid world that the policy sees as a picture: blue is the player, green the goal, red a hole.
--- The picture is new in each step. The policy says the row and the column of the player and of the
--- goal, and a move: `2 3 1 4 up` (docs/guide/images.md).
---
---   r1 run scripts/visual_grid.lua
---   r1 run scripts/visual_grid.lua policy.model=DIR policy.init=null cold_start=false

local world = require("./lib/grid_world")

--- Share of random moves in the demonstrations.
local CLUMSY = 0.3

--- A message with a picture, for demonstrations, whose rows hold their images.
local function message(task, at)
  local image = world.picture(task, at)
  return { role = "user", content = { { type = "image", rgb = image.rgb, width = image.width } } }
end

--- A conversation about several worlds: where the player and the goal are, and the best move most
--- of the time. Pictures of one game would be told apart by its moves alone.
local function demonstration()
  local messages = {}
  for _ = 1, 4 do
    local task = world.new()
    local name = world.NAMES[math.random(4)]
    if math.random() >= CLUMSY then name = world.best(world.distances(task), task.start, name) end
    table.insert(messages, message(task, task.start))
    table.insert(messages, { role = "assistant", content = `{world.described(task, task.start)} {name}` })
  end
  return { messages = messages }
end

local env = r1.env {
  max_steps = world.MAX_STEPS,
  reset = function(task)
    local image = assert(r1.image(world.picture(task, task.start)))
    return { task = task, at = task.start, messages = { { role = "user", content = { image } } } }
  end,
  step = function(state, action)
    local task, name = state.task, string.match(action.text, "(%a+)%s*$")
    table.insert(state.messages, r1.assistant(action.text))
    if not table.find(world.NAMES, name or "") then return { done = true, reward = -0.5 } end
    state.at = world.moved(state.at, name)
    if state.at == task.goal then return { done = true, reward = 1 } end
    if table.find(task.holes, state.at) then return { done = true, reward = -0.5 } end
    local image = assert(r1.image(world.picture(task, state.at)))
    table.insert(state.messages, { role = "user", content = { image } })
    return { reward = -0.05 }
  end,
}

return r1.recipe {
  env = env,
  reward = function(state) return { success = { value = if state.at == state.task.goal then 1 else 0, weight = 0 } } end,
  policy = {
    init = {
      hidden_size = 128, intermediate_size = 320, num_hidden_layers = 3,
      num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 320, tokenizer_rows = 100,
      vision = { hidden_size = 48, intermediate_size = 96, depth = 1, num_heads = 2, patch_size = 8 },
    },
  },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 400, batch_size = 32, lr = 1e-3, warmup = 30 },
  },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = world.new },
    eval = r1.data.generate { count = 128, seed = 2, row = world.new },
  },
  sampling = { max_new_tokens = 10 },
  trainer = r1.grpo { estimator = "gigpo", steps = 60, group_size = 8, groups_per_step = 16, lr = 1e-4 },
  eval = { temperature = 1, limit = 128, accuracy = "success" },
}
