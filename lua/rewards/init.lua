--- All rewards in one table: `local rewards = require("@r1/rewards")` (docs/guide/rewards.md).

local rewards = {}
for _, name in ipairs { "qa", "qa_format", "format", "numbers", "data", "penalties", "retrieval", "tables", "code" } do
  for key, value in pairs(require("@r1/rewards/" .. name)) do
    rewards[key] = value
  end
end
--- Makes a judge: the function `new` of `@r1/rewards/judge`.
rewards.judge = require("@r1/rewards/judge").new

return rewards
