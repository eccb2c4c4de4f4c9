--- Reference MCP servers, used as a policy uses them (`just test-mcp`).

local function open(name) return r1.script("tests/mcp/" .. name .. ".lua"):reset() end

local function ask(attempt, tool, arguments)
  local used = attempt:call(tool, arguments).tools[1]
  return used.output, used.ok
end

test("everything: text, structure, images, resources, progress, errors, time-outs", function()
  local attempt = open("everything")
  expect((ask(attempt, "echo", { message = "hello" }))):contains("hello")
  expect((ask(attempt, "get-sum", { a = 2, b = 40 }))):contains("42")
  expect((ask(attempt, "get-tiny-image"))):matches("%[image image/png, %d+ bytes%]")
  expect((ask(attempt, "get-resource-reference", { resourceType = "Text", resourceId = 1 }))):contains("[resource demo://")
  expect((ask(attempt, "get-resource-links", { count = 2 }))):contains("[resource demo://")
  expect((ask(attempt, "get-structured-content", { location = "Chicago" }))):contains("temperature")
  expect((ask(attempt, "get-annotated-message", { messageType = "error", includeImage = true }))):contains("[image ")
  expect((ask(attempt, "trigger-long-running-operation", { duration = 1, steps = 5 }))):contains("completed")
  local output, ok = ask(attempt, "trigger-long-running-operation", { duration = 60, steps = 60 })
  expect(output):matches("^Error: timed out after 5 s %(progress %d of 60%)$")
  expect(ok):equals(false)
  output, ok = ask(attempt, "get-sum", { a = "two", b = 40 })
  expect(output):equals("Error: arguments.a must be number, got \"two\"")
  -- The environment is what the recipe names, and little else.
  expect((string.find(ask(attempt, "get-env"), "CARGO", 1, true))):equals(nil)
end)

test("filesystem: lists, reads, writes, refuses other directories", function()
  local attempt = open("filesystem")
  local root = (string.match(ask(attempt, "list_allowed_directories"), "(/[^\n]+)"))
  expect((ask(attempt, "list_directory", { path = root }))):contains("a.txt")
  expect((ask(attempt, "read_text_file", { path = root .. "/a.txt" }))):contains("hello file")
  expect((ask(attempt, "write_file", { path = root .. "/b.txt", content = "written" }))):contains("b.txt")
  expect((ask(attempt, "read_text_file", { path = root .. "/b.txt" }))):contains("written")
  local output, ok = ask(attempt, "read_text_file", { path = "/etc/passwd" })
  expect(ok):equals(false)
  expect(output):contains("Access denied")
end)

test("memory: entities, and an argument that is not a list", function()
  local attempt = open("memory")
  local person = { name = "Ada", entityType = "person", observations = { "writes programs" } }
  local made, ok = ask(attempt, "create_entities", { entities = { person } })
  expect(ok):equals(true)
  expect((ask(attempt, "search_nodes", { query = "Ada" }))):contains("writes programs")
  made, ok = ask(attempt, "create_entities", { entities = "Ada" })
  expect(ok):equals(false)
  ask(attempt, "delete_entities", { entityNames = { "Ada" } })
end)

test("sequential-thinking: a state per trajectory", function()
  local function think(attempt, number)
    local thought = { thought = "so", nextThoughtNeeded = true, thoughtNumber = number, totalThoughts = 3 }
    return r1.json.decode((ask(attempt, "sequentialthinking", thought))).thoughtHistoryLength
  end
  local first = open("thinking")
  expect(think(first, 1)):equals(1)
  expect(think(first, 2)):equals(2)
  expect(think(open("thinking"), 1)):equals(1)
  expect(think(first:fork(), 3)):equals(3)
end)

test("fetch: a page that is not there", function()
  local output, ok = ask(open("fetch"), "fetch", { url = "http://127.0.0.1:9/" })
  expect(ok):equals(false)
  expect(#output > 0):equals(true)
end)

test("time: converts, and refuses an unknown zone", function()
  local attempt = open("time")
  local there = { source_timezone = "UTC", time = "12:00", target_timezone = "Asia/Tokyo" }
  expect((ask(attempt, "convert_time", there))):contains("21:00")
  local output, ok = ask(attempt, "get_current_time", { timezone = "Mars/Olympus" })
  expect(ok):equals(false)
end)

test("git: log and status", function()
  local attempt = open("git")
  local repo = "../../target/mcp/repo"
  expect((ask(attempt, "git_log", { repo_path = repo, max_count = 1 }))):contains("the first commit")
  expect((ask(attempt, "git_status", { repo_path = repo }))):contains("branch")
end)
