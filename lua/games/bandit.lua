--- RAGEN's two-armed bandit (arXiv:2504.20073): one arm always pays 0.1, the other pays 1 with
--- probability 0.25 and 0 otherwise. The arms have names of occupations, and the names suggest
--- which of the two takes risks.

local bandit = {}

--- Pairs of names { safe, risky }, for training and for tests.
bandit.NAMES = {
  train = {
    { "Teacher", "Trader" }, { "Nurse", "StartupFounder" }, { "Librarian", "Investor" },
    { "Accountant", "StockBroker" }, { "Engineer", "RealEstateAgent" }, { "Pharmacist", "Musician" },
    { "Clerk", "Freelancer" }, { "Technician", "Youtuber" }, { "Planner", "Artist" }, { "Postman", "Pilot" },
    { "Banker", "VentureCapitalist" }, { "Gardener", "Cryptominer" },
  },
  test = {
    { "Receptionist", "Explorer" }, { "Archivist", "Filmmaker" }, { "Bookkeeper", "Consultant" },
    { "SocialWorker", "Photographer" }, { "Mechanic", "GameDesigner" }, { "Secretary", "Entrepreneur" },
    { "Cashier", "DataScientist" }, { "CivilServant", "StartupAccelerator" },
  },
}

--- A row: a pair of names of a split in random order, as `arms`, and the `risky` one.
function bandit.task(split)
  local pair = bandit.NAMES[split][math.random(#bandit.NAMES[split])]
  local arms = math.random() < 0.5 and { pair[1], pair[2] } or { pair[2], pair[1] }
  return { arms = arms, risky = pair[2], split = split }
end

--- The reward of pulling an arm of a row.
function bandit.pull(task, arm)
  if arm ~= task.risky then return 0.1 end
  return math.random() < 0.25 and 1 or 0
end

return bandit
