--- {{name}}: an environment of its own: what it keeps, what a reply does, what the policy is shown.
---
--- The policy fills a basket up to a weight. Every reply names a thing; "done" ends the task.
---
---   r1 check {{file}}
---   r1 repl {{file}}
---   r1 run {{file}}

local WEIGHTS = { apple = 2, melon = 7, plum = 1, pumpkin = 9 }

local env = r1.env {
  max_steps = 8, -- reaching it truncates; `done` terminates
  -- A state is plain data, and a function of the task and the seed.
  reset = function(task)
    local rules = "Fill the basket to exactly " .. task.weight .. ". There are apples (2), melons (7), plums (1) and "
      .. "pumpkins (9). Name one thing at a time, then say done."
    return { weight = task.weight, filled = 0, messages = { r1.user(rules) } }
  end,
  -- Whatever the policy writes must end in an observation, never in an error.
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    local word = string.lower(string.match(action.text, "%a+") or "")
    if word == "done" then return { done = true } end
    local weight = WEIGHTS[word] or WEIGHTS[string.gsub(word, "s$", "")]
    if weight == nil then
      r1.push(state.messages, r1.user("There is no such thing here."))
      return { reward = -0.05 }
    end
    state.filled = state.filled + weight
    r1.push(state.messages, r1.user("The basket weighs " .. state.filled .. "."))
    return { done = state.filled > state.weight }
  end,
}

--- 1 for the exact weight; too much is worth nothing, too little a share.
local function reward(state, outcome)
  local share = state.filled / state.weight
  if state.filled > state.weight then share = 0 end
  return { filled = share < 1 and share / 2 or share, exact = { value = share == 1 and 1 or 0, weight = 0 } }
end

local function task() return { weight = math.random(5, 25) } end

return r1.recipe {
  env = env,
  reward = reward,
  policy = { model = "r1-nano" },
  data = {
    train = r1.data.generate { count = 1000, seed = 1, row = task },
    eval = r1.data.generate { count = 50, seed = 2, row = task },
  },
  sampling = { max_new_tokens = 12 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 8, lr = 1e-4 },
}
