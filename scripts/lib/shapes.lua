--- Stand-ins for rows of Geometry3K, in its columns: rectangles of blue squares, drawn on a board.

local drawing = require("./lib/drawing")

--- Squares of a side of the board.
local SIZE = 4

local shapes = {}

--- A figure and a question about it, with its reasoning.
function shapes.row()
  local width, height = math.random(SIZE), math.random(SIZE)
  local left, top = math.random(0, SIZE - width), math.random(0, SIZE - height)
  local board = {}
  for row = 1, SIZE do
    board[row] = table.create(SIZE, false)
    for column = 1, SIZE do
      local inside = row > top and row <= top + height and column > left and column <= left + width
      if inside then board[row][column] = "blue" end
    end
  end
  local is_area = math.random(2) == 1
  local answer = if is_area then width * height else 2 * (width + height)
  return {
    images = { drawing.board(board) },
    problem = if is_area then "<image>Find the area." else "<image>Find the perimeter.",
    answer = tostring(answer),
    reasoning = if is_area then `{width} * {height}` else `2 * ({width} + {height})`,
  }
end

return shapes
