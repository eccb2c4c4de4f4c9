--- A grid world that is seen as a picture: blue is the player, green the goal, red a hole.

local drawing = require("./lib/drawing")

local SIZE, HOLES = 4, 2
local MOVES = { up = { -1, 0 }, down = { 1, 0 }, left = { 0, -1 }, right = { 0, 1 } }

local grid_world = { NAMES = { "up", "down", "left", "right" }, MAX_STEPS = 6 }

local function cell(row, column) return (row - 1) * SIZE + column end

--- The cell after a move; walls stop it.
function grid_world.moved(at, name)
  local row, column = (at - 1) // SIZE + 1, (at - 1) % SIZE + 1
  local by = MOVES[name]
  return cell(math.clamp(row + by[1], 1, SIZE), math.clamp(column + by[2], 1, SIZE))
end

--- The number of moves to the goal from each cell that reaches it.
function grid_world.distances(world)
  local away, queue = { [world.goal] = 0 }, { world.goal }
  local index = 1
  while queue[index] do
    for _, name in ipairs(grid_world.NAMES) do
      local near = grid_world.moved(queue[index], name)
      if away[near] == nil and not table.find(world.holes, near) then
        away[near] = away[queue[index]] + 1
        table.insert(queue, near)
      end
    end
    index += 1
  end
  return away
end

--- The move after which the goal is nearest; the first one in the order of the names.
function grid_world.best(away, at, best)
  for _, name in ipairs(grid_world.NAMES) do
    local other, current = away[grid_world.moved(at, name)], away[grid_world.moved(at, best)]
    if (other or 100) < (current or 100) then best = name end
  end
  return best
end

--- Row and column of the player and of the goal.
function grid_world.described(world, at)
  local function both(number) return `{(number - 1) // SIZE + 1} {(number - 1) % SIZE + 1}` end
  return `{both(at)} {both(world.goal)}`
end

--- A world in which the goal can be reached. Its answer is the best first move, which `r1 check`
--- replies.
function grid_world.new()
  while true do
    local cells = {}
    for number = 1, SIZE * SIZE do cells[number] = number end
    for number = 1, HOLES + 2 do
      local other = math.random(number, #cells)
      cells[number], cells[other] = cells[other], cells[number]
    end
    local made = { start = cells[1], goal = cells[2], holes = table.move(cells, 3, HOLES + 2, 1, {}) }
    local away = grid_world.distances(made)
    if (away[made.start] or grid_world.MAX_STEPS) < grid_world.MAX_STEPS then
      made.answer = grid_world.best(away, made.start, "up")
      return made
    end
  end
end

--- The picture of a world, with the player at `at`.
function grid_world.picture(task, at)
  local board = {}
  for row = 1, SIZE do
    board[row] = table.create(SIZE, false)
    for column = 1, SIZE do
      local number = cell(row, column)
      if table.find(task.holes, number) then board[row][column] = "red" end
      if number == task.goal then board[row][column] = "green" end
      if number == at then board[row][column] = "blue" end
    end
  end
  return drawing.board(board)
end

return grid_world
