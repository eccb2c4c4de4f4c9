--- Rewards for programs: tests in the sandbox, each in a separate process.
---
--- Sources: pass rate over hidden tests as in APPS (arXiv:2105.09938) and LiveCodeBench
--- (arXiv:2403.07974). docs/guide/containment.md ("How to grade programs") says why expected values
--- stay
--- in Lua.

local check = require("@r1/options")
local compare = require("@r1/rewards/compare")
local data = require("@r1/rewards/data")

local code = {}

-- The text without trailing spaces of lines and empty lines at its end.
local function trimmed(text)
  return (string.gsub(string.gsub(string.gsub(text, "\r\n", "\n"), "[ \t]+\n", "\n"), "%s+$", ""))
end

-- A Python literal of a text.
local function literal(text)
  return r1.json.encode(text)
end

-- The input of a test as standard input: a file in the place of descriptor 0, so that `sys.stdin`,
-- its `buffer` and `open(0)` read it; only `sys.stdin` where no file can be written.
local STDIN = [[
import sys as _sys, io as _io, os as _os
_raw = _io.BytesIO(%s.encode())
try:
    with open(".stdin", "w+b") as _file:
        _os.unlink(".stdin")
        _file.write(_raw.getvalue())
        _file.seek(0)
        _os.dup2(_file.fileno(), 0)
    _raw = _io.FileIO(0, closefd=False)
except OSError:
    pass
_sys.stdin = _io.TextIOWrapper(_io.BufferedReader(_raw), encoding="utf-8")
]]

-- nil for JSON's null.
local function plain(value)
  if value == r1.json.null then return nil end
  return value
end

local function same(printed, expected)
  printed, expected = trimmed(printed), trimmed(expected)
  if printed == expected then return true end
  -- Numbers may be printed in another form; other lines are compared as text.
  local a, b = string.split(printed, "\n"), string.split(expected, "\n")
  if #a ~= #b then return false end
  for line = 1, #a do
    local one, other = compare.number(a[line]), compare.number(b[line])
    local numbers = type(one) == "number" and type(other) == "number"
    local is_near = one == other and one ~= nil or numbers and compare.near(one, other)
    if a[line] ~= b[line] and not is_near then return false end
  end
  return true
end

--- The share of tests that a program passes, and a list with the outcome of each.
---
--- A test is `{ input =, output = }` (standard input and output; a line that is a number has a
--- relative tolerance of 1e-6, a whole number none) or `{ expression =, equals = }`: an expression
--- after the program, and the value that it must have (`equal_values`: 4 equals 4.0; without
--- `equals` the value must be None).
--- Each test runs in its own process with the limits of the tool (`timeout`, `memory`), and all at
--- once; the expected values never reach the process. An output is compared up to `limits.result`
--- (256 KiB).
---
--- `options.all` (default false): 1 if all tests pass, otherwise 0. `options.tool` is the name of
--- the environment's Python tool (`"python"`), which may be hidden from the policy
--- (`r1.tools.python { hidden = true }`). It is an error of the recipe if the environment has no
--- such tool. The calls do not count as the policy's.
---
--- Gamed by: partial credit for programs that print a constant; use `all`, or tests without a
--- common answer.
function code.pass_rate(program, tests, options)
  options = check("pass_rate", options, { "all", "tool" })
  r1.reference(tests, "pass_rate")
  if program == nil or program == "" then return 0, {} end
  local calls, marker = {}, "r1_result:"
  for place, test in ipairs(tests) do
    local body
    if test.expression then
      body = `import json as _json\nprint({literal(marker)} + _json.dumps({test.expression}))`
    elseif test.output ~= nil then
      -- The program is a text, so that it reads the test's input and not the tool's.
      body = string.format(STDIN, literal(test.input or ""))
        .. "exec(compile(" .. literal(program) .. ", \"program.py\", \"exec\"), {\"__name__\": \"__main__\"})"
    else
      error(`pass_rate: tests[{place}] has neither \`output\` nor \`expression\``, 2)
    end
    calls[place] = {
      name = options.tool or "python",
      arguments = { code = body },
      prelude = test.expression and program or nil,
    }
  end
  local results = {}
  -- A prelude is an option of a whole call, so tests with expressions run separately.
  for _, with_prelude in ipairs { true, false } do
    local group, places = {}, {}
    for place, call in ipairs(calls) do
      if (call.prelude ~= nil) == with_prelude then
        group[#group + 1] = { name = call.name, arguments = call.arguments }
        places[#places + 1] = place
      end
    end
    if #group > 0 then
      -- The policy has not made these calls.
      local own = { hidden = true, prelude = with_prelude and program or nil }
      for at, result in ipairs(r1.call_tools(group, own)) do
        if result.kind then error(`pass_rate: tests[{places[at]}] did not run: {result.content}`, 2) end
        results[places[at]] = result
      end
    end
  end
  local passed, outcomes = 0, {}
  for place, test in ipairs(tests) do
    local result = results[place]
    local fine = result.ok
    if fine and test.expression then
      local text = string.match(trimmed(result.content), marker .. "([^\n]*)$")
      local decoded = text and r1.json.decode(`[{text}]`)
      fine = decoded ~= nil and data.equal_values(plain(decoded[1]), plain(test.equals))
    elseif fine then
      fine = same(result.content, test.output)
    end
    if fine then passed += 1 end
    -- The program is the prelude of an expression.
    outcomes[place] = { passed = fine, output = (string.gsub(result.content, "^prelude: ", "")) }
  end
  if options.all then return passed == #tests and 1 or 0, outcomes end
  return passed / #tests, outcomes
end

return code
