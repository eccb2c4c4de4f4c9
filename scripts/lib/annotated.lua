--- GSM8K's solutions and their calculator annotations (arXiv:2110.14168): `<<48/2=24>>24` in a
--- solution is a calculation and its value.

local calculator = require("@r1/calculator")
local demonstrations = require("@r1/demonstrations")

local annotated = {}

--- Tool calls in the form of the annotations. The policy writes `<<48/2>>` and stops. The value
--- follows in the same turn.
annotated.format = r1.format {
  name = "annotated",
  starts = { "<<" },
  stop = { ">>" },
  same_turn = true,
  parse = function(text)
    local calls = {}
    for expression in text:gmatch("<<(.-)>>") do
      table.insert(calls, { name = "calculator", arguments = { expression = expression } })
    end
    if #calls == 0 and text:find("<<", 1, true) then return nil, "<< was not closed with >>." end
    return calls
  end,
  write = function(calls)
    local texts = {}
    for _, call in ipairs(calls) do table.insert(texts, `<<{call.arguments.expression}>>`) end
    return table.concat(texts)
  end,
  result = function(results) return results[1].content end,
  schema = function() return "Write <<expression>> to compute. The value follows." end,
}

--- The messages of a solution after the question: text and calls, each with the value of the
--- calculator. An annotation with another value stays without a call.
---
--- `annotated.messages("48/2 = <<48/2=24>>24 clips.\n#### 24")` has the calculation, its value
--- "24" and the rest of the text.
function annotated.messages(solution)
  local messages, text, at = {}, "", 1
  while true do
    local first, last, expression, written = string.find(solution, "<<([^<>=]*)=([^<>]*)>>", at)
    if first == nil then break end
    text ..= string.sub(solution, at, first - 1)
    at = last + 1
    local value = calculator.evaluate(expression)
    local shown = value and calculator.show(value)
    -- The number that follows the annotation is the result of the call.
    if shown and shown == written and string.sub(solution, at, at + #shown - 1) == shown then
      r1.push(messages, r1.assistant(`{text}<<{expression}>>`))
      r1.push(messages, { role = "tool", name = "calculator", content = shown })
      text, at = "", at + #shown
    end
  end
  r1.push(messages, r1.assistant(text .. string.sub(solution, at)))
  return messages
end

--- A row with the columns of GSM8K or of `r1 data get gsm8k`, as a demonstration.
function annotated.demonstration(row, system, tools)
  local messages = annotated.messages(row.solution or row.answer)
  table.insert(messages, 1, r1.user(row.question or row.problem))
  return demonstrations.row(system, tools, messages)
end

return annotated
