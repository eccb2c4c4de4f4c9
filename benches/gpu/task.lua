--- A recipe for `just gpu-check` without tools: the reward is the share of digits in the response,
--- which differs between the samples of a prompt with any model.

local function reward(_, outcome)
  local _, digits = string.gsub(outcome.text, "%d", "")
  return digits / math.max(1, #outcome.text)
end

local prompts = { "Add 3 and 4.", "Count to ten.", "What is 12 times 12?", "Give three prime numbers." }
local rows = {}
for place, prompt in ipairs(prompts) do
  -- A common prefix of the rows: its activations are computed once per micro-batch.
  rows[place] = { prompt = "You are given a task. Reply with numbers. " .. prompt }
end

return r1.recipe {
  reward = reward,
  data = { train = rows },
  sampling = { temperature = 1.0, max_new_tokens = 48 },
  trainer = r1.grpo { steps = 3, group_size = 4, groups_per_step = 4, lr = 1e-3 },
}
