--- Sokoban with the rules and rewards of gym-sokoban, levels in Boxoban's text format, random small
--- rooms, and a solver by breadth-first search.
---
--- Level text: # wall, . target, @ player, $ box, * box on a target, + player on a target, space
--- floor. A room is plain data: `width`, `height`, `fixed` (text of # . and space in reading
--- order), `boxes` (list of cells), `player` (a cell). Cells are numbered from 1 in reading order.
---
--- Sources: gym-sokoban 0.0.6 (Schrader 2018), google-deepmind/boxoban-levels, RAGEN
--- (arXiv:2504.20073).

local check = require("@r1/options")

local sokoban = {}

--- Names of the actions 1 to 4 of gym-sokoban, which push; 5 to 8 move without pushing, and 0 does
--- nothing.
sokoban.ACTIONS = { "Up", "Down", "Left", "Right" }

local STEP, ON_TARGET, FINISHED = -0.1, 1, 10

--- The offset of a direction from 1 to 4.
local function offset(room, direction)
  return direction == 1 and -room.width or direction == 2 and room.width or direction == 3 and -1 or 1
end

local function fixed_at(room, cell) return string.sub(room.fixed, cell, cell) end
local function is_wall(room, cell)
  return cell < 1 or cell > #room.fixed or string.byte(room.fixed, cell) == 35
end

--- A room from the text of a level.
function sokoban.parse(text)
  local lines = {}
  for line in string.gmatch(text, "[^\n]+") do
    if string.sub(line, 1, 1) ~= ";" then lines[#lines + 1] = line end
  end
  local room = { width = 0, height = #lines, fixed = "", boxes = {}, player = 0, on_target = 0 }
  for _, line in ipairs(lines) do room.width = math.max(room.width, #line) end
  local fixed, targets = {}, 0
  for row, line in ipairs(lines) do
    for column = 1, room.width do
      local cell, char = (row - 1) * room.width + column, string.sub(line, column, column)
      if char == "@" or char == "+" then room.player = cell end
      if char == "$" or char == "*" then r1.push(room.boxes, cell) end
      local target = char == "." or char == "*" or char == "+"
      if target then targets += 1 end
      fixed[cell] = target and "." or char == "#" and "#" or " "
    end
  end
  if room.player == 0 then error("sokoban: the level has no player (@)", 2) end
  if #room.boxes == 0 or targets ~= #room.boxes then
    error(`sokoban: the level has {#room.boxes} boxes and {targets} targets; both must be equal and not 0`, 2)
  end
  room.fixed = table.concat(fixed)
  return room
end

--- The levels of a Boxoban file, as texts in their order.
function sokoban.levels(text)
  local found, lines = {}, {}
  local function close()
    if #lines > 0 then found[#found + 1] = table.concat(lines, "\n") end
    lines = {}
  end
  for line in string.gmatch(text .. "\n", "(.-)\r?\n") do
    if string.sub(line, 1, 1) == ";" then close() elseif line ~= "" then r1.push(lines, line) end
  end
  close()
  return found
end

local function count_on_target(room)
  local count = 0
  for _, cell in ipairs(room.boxes) do
    if fixed_at(room, cell) == "." then count += 1 end
  end
  return count
end

--- Whether all boxes are on targets.
function sokoban.solved(room) return count_on_target(room) == #room.boxes end

--- Takes an action (0 to 8) and changes the room: the reward, whether all boxes are on targets,
--- whether the player moved, whether a box did.
---
--- As in gym-sokoban, the first step also counts boxes that were on targets from the start.
function sokoban.step(room, action)
  local player_moved, box_moved = false, false
  if action > 0 then
    local by = offset(room, (action - 1) % 4 + 1)
    local ahead = room.player + by
    local box = table.find(room.boxes, ahead)
    if box and action <= 4 and not is_wall(room, ahead + by) and not table.find(room.boxes, ahead + by) then
      room.boxes[box], room.player = ahead + by, ahead
      player_moved, box_moved = true, true
    elseif not box and not is_wall(room, ahead) then
      room.player, player_moved = ahead, true
    end
  end
  local before, now = room.on_target, count_on_target(room)
  room.on_target = now
  local reward = STEP + (now > before and ON_TARGET or now < before and -ON_TARGET or 0)
  local done = now == #room.boxes
  return done and reward + FINISHED or reward, done, player_moved, box_moved
end

local function drawn(room, symbols)
  local lines = {}
  for row = 1, room.height do
    local cells = {}
    for column = 1, room.width do
      local cell = (row - 1) * room.width + column
      local char = fixed_at(room, cell)
      if table.find(room.boxes, cell) then
        char = char == "." and "*" or "$"
      elseif cell == room.player then
        char = char == "." and "+" or "@"
      end
      cells[column] = symbols and symbols[char] or char
    end
    lines[row] = table.concat(cells)
  end
  return table.concat(lines, "\n")
end

--- The room as the text of a level.
function sokoban.text(room) return drawn(room) end

--- The room in RAGEN's symbols: # wall, _ floor, O target, √ box on target, X box, P player, S
--- player on target.
function sokoban.draw(room)
  return drawn(room, { ["#"] = "#", [" "] = "_", ["."] = "O", ["*"] = "√", ["$"] = "X", ["@"] = "P", ["+"] = "S" })
end

--- What the player sees around it: the way to each box, the way from the box to the nearest target,
--- and the neighbours that are walls, such as `X Down 1 Right 2, O Left 2. Wall Up.`
function sokoban.around(room)
  local function way(from, to)
    local down = (to - 1) // room.width - (from - 1) // room.width
    local right = (to - 1) % room.width - (from - 1) % room.width
    local words = {}
    if down ~= 0 then r1.push(words, `{down > 0 and "Down" or "Up"} {math.abs(down)}`) end
    if right ~= 0 then r1.push(words, `{right > 0 and "Right" or "Left"} {math.abs(right)}`) end
    return #words > 0 and table.concat(words, " ") or "here", math.abs(down) + math.abs(right)
  end
  local parts, walls = {}, {}
  for _, box in ipairs(room.boxes) do
    local nearest, least = "", math.huge
    for cell = 1, #room.fixed do
      local words, distance = way(box, cell)
      if fixed_at(room, cell) == "." and distance < least then nearest, least = words, distance end
    end
    r1.push(parts, `X {way(room.player, box)}, O {nearest}.`)
  end
  for direction, name in ipairs(sokoban.ACTIONS) do
    if is_wall(room, room.player + offset(room, direction)) then r1.push(walls, name) end
  end
  local text = table.concat(parts, " ")
  return #walls > 0 and `{text} Wall {table.concat(walls, " ")}.` or text
end

--- Cells from which a box can still be pushed to some target, by pulling from the targets.
local function live_cells(room)
  local live, open = {}, {}
  for cell = 1, #room.fixed do
    if fixed_at(room, cell) == "." then
      live[cell] = true
      r1.push(open, cell)
    end
  end
  while #open > 0 do
    local cell = table.remove(open)
    for direction = 1, 4 do
      local by = offset(room, direction)
      if not live[cell + by] and not is_wall(room, cell + by) and not is_wall(room, cell + 2 * by) then
        live[cell + by] = true
        r1.push(open, cell + by)
      end
    end
  end
  return live
end

--- The cells that the player reaches without pushing, each with the cell before it, and the
--- smallest of them.
local function reachable(room, occupied, player)
  local from, open, least = { [player] = 0 }, { player }, player
  local at = 1
  while open[at] do
    local cell = open[at]
    at += 1
    least = math.min(least, cell)
    for direction = 1, 4 do
      local ahead = cell + offset(room, direction)
      if from[ahead] == nil and not is_wall(room, ahead) and not occupied[ahead] then
        from[ahead] = cell
        r1.push(open, ahead)
      end
    end
  end
  return from, least
end

--- The directions of a walk from `player` to `goal`.
local function walk(room, occupied, player, goal)
  local from = reachable(room, occupied, player)
  local cells, cell = {}, goal
  while cell ~= player do
    table.insert(cells, 1, cell)
    cell = from[cell]
  end
  local moves, before = {}, player
  for k, here in ipairs(cells) do
    for direction = 1, 4 do
      if before + offset(room, direction) == here then moves[k] = direction end
    end
    before = here
  end
  return moves
end

--- A solution with the fewest pushes: a list of actions 1 to 4; nil if there is none, and nil and
--- "limit" after `options.limit` (100000) states.
---
--- Breadth-first search over pushes; states are the boxes and the part of the room that the player
--- reaches.
function sokoban.solve(room, options)
  options = check("solve", options, { "limit" })
  local limit, live = options.limit or 100000, live_cells(room)
  local function key_of(boxes, least)
    local sorted = table.clone(boxes)
    table.sort(sorted)
    return table.concat(sorted, ",") .. ";" .. least
  end
  local function occupied_by(boxes)
    local occupied = {}
    for _, cell in ipairs(boxes) do occupied[cell] = true end
    return occupied
  end
  for _, cell in ipairs(room.boxes) do
    if not live[cell] then return nil end
  end
  local queue, seen, at = { { boxes = room.boxes, player = room.player } }, {}, 1
  local _, first = reachable(room, occupied_by(room.boxes), room.player)
  seen[key_of(room.boxes, first)] = true
  while queue[at] do
    local node = queue[at]
    if at > limit then return nil, "limit" end
    at += 1
    local solved = true
    for _, cell in ipairs(node.boxes) do solved = solved and fixed_at(room, cell) == "." end
    if solved then
      local pushes = {}
      while node.parent do
        table.insert(pushes, 1, node)
        node = node.parent
      end
      local actions = {}
      for _, push in ipairs(pushes) do
        local side = push.player - offset(room, push.direction)
        for _, move in ipairs(walk(room, occupied_by(push.parent.boxes), push.parent.player, side)) do
          r1.push(actions, move)
        end
        r1.push(actions, push.direction)
      end
      return actions
    end
    local occupied = occupied_by(node.boxes)
    local from = reachable(room, occupied, node.player)
    for k, box in ipairs(node.boxes) do
      for direction = 1, 4 do
        local by = offset(room, direction)
        local to = box + by
        if from[box - by] and live[to] and not occupied[to] then
          local boxes = table.clone(node.boxes)
          boxes[k] = to
          occupied[box], occupied[to] = nil, true
          local _, least = reachable(room, occupied, box)
          occupied[box], occupied[to] = true, nil
          local key = key_of(boxes, least)
          if not seen[key] then
            seen[key] = true
            r1.push(queue, { boxes = boxes, player = box, parent = node, direction = direction })
          end
        end
      end
    end
  end
  return nil
end

--- The text of a random room that has a solution, and the actions of the solution.
---
--- Options: `width`, `height` (6, with the outer walls), `boxes` (1), `walls` (2: inner walls),
--- `least`, `most` (2, 12: actions of the solution).
function sokoban.random(options)
  options = check("random", options, { "width", "height", "boxes", "walls", "least", "most" })
  local width, height = options.width or 6, options.height or 6
  local count = options.boxes or 1
  while true do
    local inside = {}
    for row = 2, height - 1 do
      for column = 2, width - 1 do r1.push(inside, (row - 1) * width + column) end
    end
    local chars = table.create(width * height, "#")
    for _, cell in ipairs(inside) do chars[cell] = " " end
    local function place(char)
      local k = math.random(#inside)
      chars[inside[k]] = char
      table.remove(inside, k)
    end
    for _ = 1, options.walls or 2 do place("#") end
    for _ = 1, count do place("$") end
    for _ = 1, count do place(".") end
    place("@")
    local lines = {}
    for row = 1, height do lines[row] = table.concat(chars, "", (row - 1) * width + 1, row * width) end
    local text = table.concat(lines, "\n")
    local actions = sokoban.solve(sokoban.parse(text), { limit = 2000 })
    if actions and #actions >= (options.least or 2) and #actions <= (options.most or 12) then return text, actions end
  end
end

return sokoban
