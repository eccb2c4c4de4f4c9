--- A recipe for `just gpu-check`: steps of 64 trajectories with prompts of about 200 tokens and
--- replies of 256; the reward is the share of digits in the response.

local words = {}
for i = 1, 60 do
  words[i] = ({ "river", "stone", "blue", "seven", "cat" })[i % 5 + 1]
end
local rows = {}
for place = 1, 8 do
  rows[place] = { prompt = "Task " .. place .. ": " .. table.concat(words, " ") }
end

return r1.recipe {
  reward = function(_, outcome)
    local _, digits = string.gsub(outcome.text, "%d", "")
    return digits / math.max(1, #outcome.text)
  end,
  data = { train = rows },
  sampling = { temperature = 1.0, max_new_tokens = 256 },
  trainer = r1.grpo { steps = 100, group_size = 8, groups_per_step = 8, lr = 1e-6 },
  checkpoint = { every = 0 },
}
