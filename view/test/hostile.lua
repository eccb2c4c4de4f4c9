--- A recipe for the browser test: prompts with HTML, terminal escapes and a long line.

local HOSTILE = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>{"\27"}[2J`

local env = r1.env {
  format = "answer",
  max_steps = 2,
  reset = function(task)
    local first = r1.user(HOSTILE .. task.question)
    return { first = first, messages = { r1.system("Reply with a number."), first } }
  end,
  -- The second prompt leaves the system message out, as a context policy does.
  step = function(state, action)
    state.length = #action.text
    state.messages = { state.first, r1.assistant(action), r1.user("Again.") }
    return { reward = #action.text % 3 - 1 }
  end,
}

local function row(index) return { question = `{index} + 1?` } end

return r1.recipe {
  env = env,
  reward = function(state) return { long = { value = state.length > 20 and 1 or 0 } } end,
  policy = { model = "r1-nano" },
  data = { train = r1.data.generate { count = 64, row = row }, eval = r1.data.generate { count = 4, row = row } },
  sampling = { max_new_tokens = 24 },
  trainer = r1.grpo { steps = 3, group_size = 4, groups_per_step = 2, lr = 1e-5 },
  eval = { limit = 4 },
}
