--- Questions about small pictures: how many squares are red, the colour of a cell, the place of a
--- colour, and the value of a bar of a chart. The bars are thin: a program in Python enlarges one,
--- and its picture is shown (docs/guide/images.md).
---
---   r1 run scripts/visual_questions.lua

local questions = require("./lib/visual_questions")

--- Share of demonstrations about charts that guess the answer without a program.
local GUESSED = 0.5

local python = r1.tools.python { keep_files = true, files = { ["chart.py"] = "lib/chart.py" } }

--- A call is a program between <code> and </code>. The prompt does not describe it.
local code = r1.format {
  name = "visual_code",
  starts = { "<code>" },
  parse = function(text)
    local program = string.match(text, "<code>(.-)</code>")
    if program then return { { name = "python", arguments = { code = program } } } end
  end,
}

--- The message with the picture that a program wrote.
local function shown(image) return { role = "tool", name = "python", content = { image } } end

--- Adds a question about a picture to messages of demonstrations, whose rows hold their images.
local function ask(messages, task, is_first)
  local function part(picture) return { type = "image", rgb = picture.rgb, width = picture.width } end
  local content = { { type = "text", text = task.question } }
  if is_first then table.insert(content, 1, part(questions.picture(task))) end
  r1.push(messages, r1.user(content))
  local answer = task.answer
  if task.board and is_first then
    answer = `{questions.described(task.board)}: {answer}`
  elseif task.kind == "chart" and math.random() < GUESSED then
    answer = tostring(math.random(8))
  elseif task.kind == "chart" then
    r1.push(messages, r1.assistant(`<code>crop({task.bar})</code>`))
    r1.push(messages, shown(part(questions.crop(task, task.bar))))
  end
  r1.push(messages, r1.assistant(answer))
end

--- A conversation about three pictures, which do not depend on each other.
local function demonstration()
  local messages = {}
  for _ = 1, 3 do
    local tasks = if math.random(3) == 1 then { questions.about_chart() } else questions.about_board()
    for index, task in ipairs(tasks) do ask(messages, task, index == 1) end
  end
  return { messages = messages }
end

local env = r1.env {
  tools = { python },
  format = code,
  max_steps = 2,
  reset = function(task)
    local content = { assert(r1.image(questions.picture(task))), { type = "text", text = task.question } }
    return { task = task, messages = { { role = "user", content = content } } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action))
    if #action.tool_calls == 0 then return { done = true } end
    local files = state.task.bars and { ["chart.ppm"] = questions.ppm(state.task) } or nil
    for _, result in ipairs(r1.call_tools(action.tool_calls, { prelude = "from chart import crop", files = files })) do
      local image = result.images and result.images[1]
      r1.push(state.messages, if image then shown(image) else r1.observation(result))
    end
    return {}
  end,
}

--- 1 for the right answer, which may follow a description. The accuracy of each kind of question is
--- logged.
local function reward(state, outcome)
  local answer = string.match(outcome.text, ": (.*)$") or outcome.text
  local right = if answer == state.task.answer then 1 else 0
  return {
    accuracy = right,
    [state.task.kind] = { value = right, weight = 0 },
  }
end

return r1.recipe {
  env = env,
  reward = reward,
  policy = {
    init = {
      hidden_size = 128, intermediate_size = 320, num_hidden_layers = 3,
      num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 320, tokenizer_rows = 100,
      vision = { hidden_size = 48, intermediate_size = 96, depth = 1, num_heads = 2, patch_size = 8 },
    },
  },
  cold_start = {
    data = { train = r1.data.generate { count = 100000, seed = 7, row = demonstration } },
    trainer = r1.sft { steps = 400, batch_size = 16, lr = 1.2e-3, warmup = 30 },
  },
  data = {
    train = r1.data.generate { count = 100000, seed = 1, row = questions.row },
    eval = r1.data.generate { count = 256, seed = 2, row = questions.row },
  },
  sampling = { max_new_tokens = 48 },
  trainer = r1.grpo { steps = 150, group_size = 8, groups_per_step = 16, lr = 1e-4 },
  eval = { temperature = 1, limit = 256, accuracy = "accuracy" },
}
