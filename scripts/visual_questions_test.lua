--- Tests of scripts/visual_questions.lua.

local questions = require("./lib/visual_questions")

local script = r1.script("scripts/visual_questions.lua")
local CHART = { kind = "chart", bars = { 3, 8, 1, 5, 2, 7, 4, 6 }, bar = 4, question = "bar 4?", answer = "5" }
local BOARD = {
  kind = "count",
  board = { { "red", false, "blue" }, { "red", "green", false }, { false, false, "yellow" } },
  question = "how many red?",
  answer = "2",
}

--- The last part of the last message, an image.
local function last_image(trajectory)
  local shown = trajectory:observe()
  local content = shown[#shown].content
  return content[#content]
end

test("the right answer has the reward 1, other replies 0", function()
  for reply, expected in pairs { ["2"] = 1, ["3"] = 0, ["2 red"] = 0, [""] = 0 } do
    local trajectory = script:reset { task = BOARD }
    local step = trajectory:step(reply)
    expect(step.done):equals(true)
    local total, parts = trajectory:reward()
    expect(total):equals(expected)
    expect(parts.count):equals(expected)
  end
end)

test("a program shows a picture of a bar", function()
  local trajectory = script:reset { task = CHART }
  local step = trajectory:step("<code>crop(4)</code>")
  expect(step.done):equals(false)
  local shown = trajectory:observe()
  expect(#shown):equals(3)
  expect(shown[3].role):equals("tool")
  expect(last_image(trajectory).type):equals("image")
  trajectory:step("5")
  expect(trajectory:reward()):equals(1)
end)

test("a program without a picture shows its error", function()
  for _, program in ipairs { "crop(9)", "crop(", "print(1)" } do
    local trajectory = script:reset { task = CHART }
    trajectory:step(`<code>{program}</code>`)
    local shown = trajectory:observe()
    expect(shown[3].role):equals("tool")
    expect(type(shown[3].content)):equals("string")
  end
end)

test("answers follow from the pictures", function()
  for index = 0, 60 do
    local task = script:row(index)
    if task.kind == "chart" then
      expect(task.answer):equals(tostring(task.bars[task.bar]))
    else
      local picture, found = questions.picture(task), {}
      -- The middle of a cell has its colour.
      for row = 1, 3 do
        for column = 1, 3 do
          local at = (((row - 1) * 16 + 8) * picture.width + (column - 1) * 16 + 8) * 3
          local red, green, blue = string.byte(picture.rgb, at + 1, at + 3)
          local name = if blue > 200 and red > 200 then "none"
            elseif blue > 200 then "blue"
            elseif red > 200 and green > 200 then "yellow"
            elseif red > 200 then "red"
            else "green"
          found[`{row} {column}`] = name
        end
      end
      local colour, count, place = string.match(task.question, "(%a+)%?"), 0, nil
      for at, name in pairs(found) do
        if name == colour then count, place = count + 1, at end
      end
      local answers = { count = tostring(count), place = place, colour = found[string.match(task.question, "%d %d")] }
      expect(answers[task.kind]):equals(task.answer)
    end
  end
end)
