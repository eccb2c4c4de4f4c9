--- A game for tree sampling: a sequence of rooms, each with a sign whose colour determines the
--- right door. The only reward is for the vault at the end, which is open if every door was right.

local ROOMS = 8
local COLOURS = { "red", "blue", "green", "black", "white", "yellow" }
local LEFT = { red = true, green = true, white = true }

local vault = {}

local function line(task, room)
  return "Room " .. room .. ": " .. task.signs[room]
end

local function right_door(task, room)
  return LEFT[task.signs[room]] and "left" or "right"
end

--- A row is a function of its index: `math.random` is seeded from it.
function vault.row()
  local signs = {}
  for room = 1, ROOMS do signs[room] = COLOURS[math.random(#COLOURS)] end
  return { signs = signs }
end

--- A player that takes the right door with probability 3/4; with `last_only` only the last door is
--- a guess.
local function demonstration(last_only)
  local task = vault.row()
  local messages = {}
  for room = 1, ROOMS do
    local door = right_door(task, room)
    local wrong = 0.25
    if last_only then wrong = room == ROOMS and 0.5 or 0 end
    if math.random() < wrong then door = door == "left" and "right" or "left" end
    r1.push(messages, r1.user(line(task, room)))
    r1.push(messages, r1.assistant("the " .. door .. " door"))
  end
  return { messages = messages, format = "retool" }
end

--- Trains a model on demonstrations of this player.
function vault.demos(last_only)
  local function row() return demonstration(last_only) end
  return r1.recipe {
    env = r1.env { format = "retool" },
    policy = {
      init = {
        hidden_size = 64,
        intermediate_size = 192,
        num_hidden_layers = 2,
        num_attention_heads = 4,
        num_key_value_heads = 2,
        max_position_embeddings = 512,
        vocab_size = 320,
        tokenizer_rows = 400,
      },
    },
    data = { train = r1.data.generate { count = 20000, seed = 3, row = row } },
    trainer = r1.sft { steps = 300, batch_size = 32, lr = 2e-3, tokens_per_batch = 8192 },
  }
end

--- The recipe; with `ends` the first wrong door ends the game, otherwise all rooms are played.
function vault.recipe(ends)
  local env = r1.env {
    format = "retool",
    max_steps = ROOMS,
    reset = function(task) return { task = task, room = 1, right = 0, messages = { r1.user(line(task, 1)) } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      local right = action.text == "the " .. right_door(state.task, state.room) .. " door"
      if right then state.right = state.right + 1 end
      state.room = state.room + 1
      if state.room > ROOMS or (ends and not right) then return { done = true } end
      r1.push(state.messages, r1.user(line(state.task, state.room)))
      return {}
    end,
  }
  return r1.recipe {
    env = env,
    reward = function(state)
      return { open = state.right == ROOMS and 1 or 0, rooms = { value = state.right / ROOMS, weight = 0 } }
    end,
    data = {
      train = r1.data.generate { count = 10000, seed = 1, row = vault.row },
      eval = r1.data.generate { count = 256, seed = 2, row = vault.row },
    },
    sampling = { max_new_tokens = 8 },
    eval = { every = 5, limit = 256, temperature = 1, accuracy = "open" },
    trainer = r1.grpo { steps = 60, group_size = 8, groups_per_step = 8, lr = 1e-3 },
    checkpoint = { every = 0 },
  }
end

return vault
