--- A recipe with an environment of gymnasium from target/worlds.
local env_gym = require("@r1/env_gym")

local python = "../../target/worlds/bin/python3"

return function(given)
  given.python = python
  return r1.recipe {
    needs = { "process:" .. python },
    env = env_gym(given),
    reward = function() return 0 end,
    data = { train = r1.data.generate { count = 4, row = function(i) return { seed = i } end } },
  }
end
