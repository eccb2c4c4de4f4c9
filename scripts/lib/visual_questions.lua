--- Questions about small pictures: boards of coloured squares, and charts whose bars are so thin
--- that a program has to enlarge them.

local drawing = require("./lib/drawing")

local SIZE = 3
local COLOURS = { "red", "green", "blue", "yellow" }
--- Bars of a chart, their largest value, and pixels of their width and of a unit.
local BARS, LARGEST, BAR = 8, 8, 4

local questions = {}

local function cell() return math.random(SIZE), math.random(SIZE) end

--- A board without squares of `colour`, about half of whose squares have the colour `often`.
local function board_without(colour, often)
  local board = {}
  for row = 1, SIZE do
    board[row] = table.create(SIZE, false)
    for column = 1, SIZE do
      local other = if math.random() < 0.5 then often else COLOURS[math.random(#COLOURS)]
      if other ~= colour and math.random() < 0.8 then board[row][column] = other end
    end
  end
  return board
end

--- Questions about a board, on which there is one square of `colour`.
local ASK = {
  count = function(board, _, often)
    local other, count = if math.random() < 0.5 then often else COLOURS[math.random(#COLOURS)], 0
    for row = 1, SIZE do
      for column = 1, SIZE do
        if board[row][column] == other then count += 1 end
      end
    end
    return `how many {other}?`, tostring(count)
  end,
  colour = function(board)
    local row, column = cell()
    while not board[row][column] and math.random() < 0.75 do row, column = cell() end
    return `colour of {row} {column}?`, board[row][column] or "none"
  end,
  place = function(_, colour, _, row, column) return `where is {colour}?`, `{row} {column}` end,
}

--- Questions about one board, one of each kind, in random order.
function questions.about_board()
  local colour = COLOURS[math.random(#COLOURS)]
  local often, row, column = COLOURS[math.random(#COLOURS)], cell()
  local board = board_without(colour, often)
  board[row][column] = colour
  local tasks = {}
  for _, kind in ipairs { "count", "colour", "place" } do
    local question, answer = ASK[kind](board, colour, often, row, column)
    table.insert(tasks, math.random(#tasks + 1), { kind = kind, board = board, question = question, answer = answer })
  end
  return tasks
end

--- A question about a bar of a chart.
function questions.about_chart()
  local bars, bar = {}, math.random(BARS)
  for index = 1, BARS do bars[index] = math.random(LARGEST) end
  return { kind = "chart", bars = bars, bar = bar, question = `bar {bar}?`, answer = tostring(bars[bar]) }
end

--- A question about a picture: about a chart in one of four tasks.
function questions.row()
  return if math.random(4) == 1 then questions.about_chart() else questions.about_board()[1]
end

--- Row, column and colour of the squares of a board, which demonstrations say before an answer:
--- many words about a picture teach more of it than one.
function questions.described(board)
  local words = {}
  for row = 1, SIZE do
    for column = 1, SIZE do
      if board[row][column] then table.insert(words, `{row} {column} {board[row][column]}`) end
    end
  end
  return table.concat(words, " ")
end

--- Whether a pixel of a chart belongs to a bar, from the left and from the top.
local function is_filled(bars, x, y) return LARGEST * BAR - y <= bars[x // BAR + 1] * BAR end

--- The picture of a task.
function questions.picture(task)
  if task.board then return drawing.board(task.board) end
  return drawing.filled(BARS * BAR, LARGEST * BAR, function(x, y) return is_filled(task.bars, x, y) end)
end

--- The picture that `crop` of chart.py makes of a bar.
function questions.crop(task, bar)
  local scale = 4
  return drawing.filled(BAR * scale, LARGEST * BAR * scale, function(x, y)
    return is_filled(task.bars, (bar - 1) * BAR + x // scale, y // scale)
  end)
end

--- The picture of a chart as a PPM file in text.
function questions.ppm(task)
  local picture = questions.picture(task)
  local values = { "P3", tostring(picture.width), tostring(LARGEST * BAR), "255" }
  for index = 1, #picture.rgb do values[index + 4] = tostring(string.byte(picture.rgb, index)) end
  return table.concat(values, " ")
end

return questions
