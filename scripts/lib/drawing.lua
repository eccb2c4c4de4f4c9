--- Pictures of boards of coloured squares and of charts, as pixels for `r1.image`.

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

--- The picture whose pixels have the colours `name_of(x, y)`, from the left and from the top.
local function draw(width, height, name_of)
  local pixels = buffer.create(height * width * 3)
  for y = 0, height - 1 do
    for x = 0, width - 1 do
      for channel, value in ipairs(COLOURS[name_of(x, y) or "white"]) do
        buffer.writeu8(pixels, (y * width + x) * 3 + channel - 1, value)
      end
    end
  end
  return { rgb = buffer.tostring(pixels), width = width }
end

--- The picture of a board: rows of names of colours; `false` is an empty cell.
function drawing.board(board)
  return draw(#board[1] * CELL, #board * CELL, function(x, y)
    local down, right = y % CELL, x % CELL
    local edge = math.min(down, right, CELL - 1 - down, CELL - 1 - right) < EDGE
    return not edge and board[y // CELL + 1][x // CELL + 1]
  end)
end

--- A picture in blue and white. `is_filled(x, y)`: whether a pixel is blue.
function drawing.filled(width, height, is_filled)
  return draw(width, height, function(x, y) return is_filled(x, y) and "blue" end)
end

return drawing
