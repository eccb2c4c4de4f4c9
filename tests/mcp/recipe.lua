-- A recipe whose tools are on one reference server (tests/mcp/setup.sh).

local place = "../../target/mcp/"

--- `program`: "npm/NAME" or "venv/NAME"; further arguments are paths below target/mcp, or flags.
return function(program, arguments, options)
  local folder, name = string.match(program, "^(%w+)/(.+)$")
  local path = place .. folder .. (if folder == "npm" then "/node_modules/.bin/" else "/bin/") .. name
  local command = { path }
  for _, argument in ipairs(arguments or {}) do r1.push(command, argument) end
  local server = { command = command, name = name }
  for key, value in pairs(options or {}) do server[key] = value end
  return r1.recipe {
    env = r1.env { tools = r1.tools.mcp(server), max_steps = 50 },
    -- A model that is not on this machine: r1-nano's tokens, but not its short context.
    policy = { model = "Qwen/Qwen2.5-0.5B-Instruct", max_context = 100000 },
    needs = { "process:" .. path },
    reward = function() return 0 end,
    data = { train = { { prompt = "Use the tools." } } },
  }
end
