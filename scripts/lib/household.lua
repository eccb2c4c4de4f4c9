--- A small household in text, in the manner of ALFWorld (arXiv:2010.03768), which stands in for its
--- server: places, one of which has the thing, and the task to put it elsewhere.

local PLACES = { "shelf 1", "shelf 2", "shelf 3", "shelf 4", "shelf 5", "shelf 6" }
local THINGS = { "book", "pen", "card", "lamp", "ring", "key" }

local household = {}

--- A task: the thing, where it is, where it belongs, and the first action, which `r1 check`
--- replies.
function household.row()
  local from = math.random(#PLACES)
  local to = (from + math.random(#PLACES - 1) - 1) % #PLACES + 1
  local thing = THINGS[math.random(#THINGS)]
  return {
    question = `Put the {thing} on {PLACES[to]}.`, thing = thing, from = PLACES[from], to = PLACES[to],
    answer = `Action: go to {PLACES[from]}`,
  }
end

--- The state of a task and the first observation.
function household.start(task)
  local places = table.concat(PLACES, ", ")
  return { at = "the door", thing = task.from }, `You are at the door. There are {places}. Your task: {task.question}`
end

--- The observation after an action, and whether the task is done.
function household.act(world, task, action)
  local place = action:match("^go to (.+)$")
  if place and table.find(PLACES, place) then
    world.at = place
    return `You are at {place}. You see {world.thing == place and "a " .. task.thing or "nothing"}.`, false
  end
  if action == `take {task.thing}` and world.thing == world.at then
    world.thing = "you"
    return `You have the {task.thing}.`, false
  end
  if action == `put {task.thing}` and world.thing == "you" and table.find(PLACES, world.at) then
    world.thing = world.at
    return `The {task.thing} is on {world.at}.`, world.at == task.to
  end
  return "Nothing happens.", false
end

--- The next action of a player who searches at random, and does anything else with the probability
--- that is left. `world` is as before the action.
function household.plan(world, task, probability)
  if math.random() > probability then
    local other = math.random(4)
    return other == 1 and `take {task.thing}` or other == 2 and `put {task.thing}` or `go to {PLACES[math.random(#PLACES)]}`
  end
  if world.thing == "you" then return world.at == task.to and `put {task.thing}` or `go to {task.to}` end
  return world.thing == world.at and `take {task.thing}` or `go to {PLACES[math.random(#PLACES)]}`
end

--- Plays this many actions or fewer, until the task is done: the actions, and what was seen before
--- each of them.
function household.walk(task, count, probability)
  local world, text = household.start(task)
  local texts, actions = {}, {}
  for k = 1, count do
    texts[k], actions[k] = text, household.plan(world, task, probability)
    local done
    text, done = household.act(world, task, actions[k])
    if done then break end
  end
  return texts, actions
end

return household
