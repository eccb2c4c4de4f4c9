--- Tool-call formats with one tool, whose only argument is the text between two tags, and whose
--- results follow in the same turn.
---
--- Options: `name` of the format; `tag`, without brackets; `tool`; `argument`; `empty`, the error
--- of a call without text; `result`, text -> text with the format's marks; `schema`, the text that
--- describes the format.

return function(options)
  local open, close = `<{options.tag}>`, `</{options.tag}>`
  return r1.format {
    name = options.name,
    starts = { open },
    stop = { close },
    same_turn = true,
    parse = function(text)
      local calls = {}
      for value in text:gmatch(open .. "(.-)" .. close) do
        value = value:match("^%s*(.-)%s*$")
        local call = { name = options.tool, arguments = { [options.argument] = value } }
        table.insert(calls, value == "" and { error = options.empty } or call)
      end
      if #calls == 0 and text:find(open, 1, true) then return nil, `{open} was not closed with {close}.` end
      return calls
    end,
    write = function(calls)
      local texts = {}
      for _, call in ipairs(calls) do
        table.insert(texts, open .. tostring(call.arguments[options.argument] or "") .. close)
      end
      return table.concat(texts, "\n")
    end,
    result = function(results)
      local texts = {}
      for _, result in ipairs(results) do table.insert(texts, result.content) end
      return options.result(table.concat(texts, "\n"))
    end,
    schema = function() return options.schema end,
  }
end
