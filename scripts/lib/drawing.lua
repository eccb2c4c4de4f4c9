--- Pictures of boards of coloured squares, as pixels for `r1.image`.

local drawing = {}

--- Red, green and blue of each colour.
local COLOURS = {
  red = { 220, 40, 40 },
  green = { 40, 180, 60 },
  blue = { 50, 80, 220 },
  yellow = { 240, 220, 60 },
  white = { 255, 255, 255 },
}

--- Pixels of a side of a cell, and of its white edge.
local CELL, EDGE = 16, 2

--- The picture of a board: rows of names of colours; `false` is an empty cell.
function drawing.board(board)
  local width = #board[1] * CELL
  local pixels = buffer.create(#board * CELL * width * 3)
  for y = 0, #board * CELL - 1 do
    for x = 0, width - 1 do
      local name = board[y // CELL + 1][x // CELL + 1]
      local down, right = y % CELL, x % CELL
      local edge = math.min(down, right, CELL - 1 - down, CELL - 1 - right) < EDGE
      for channel, value in ipairs(COLOURS[if name and not edge then name else "white"]) do
        buffer.writeu8(pixels, (y * width + x) * 3 + channel - 1, value)
      end
    end
  end
  return { rgb = buffer.tostring(pixels), width = width }
end

return drawing
