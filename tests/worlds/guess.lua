--- The OpenEnv server of openenv_server.py.
local env_http = require("@r1/env_http")

return r1.recipe {
  needs = { "http:127.0.0.1:18765" },
  env = env_http {
    url = "http://127.0.0.1:18765",
    protocol = "openenv",
    server_state = true,
    action = function(action) return { number = action.text } end,
    observation = function(seen) return seen.hint end,
    reset = function(task) return { seed = task.seed } end,
    reward = function(answer) return (answer.reward or 0) + answer.server_state.step_count / 100 end,
  },
  reward = function() return 0 end,
  data = { train = r1.data.generate { count = 4, row = function(i) return { seed = i } end } },
}
