--- Options of library functions: a misspelt name is an error at the line of the caller.

--- The options of the function `name` (an empty table for nil). `known` lists the names that it
--- takes.
return function(name, options, known)
  if options == nil then return {} end
  if type(options) ~= "table" then error(`{name}: options are a table, got a {type(options)}`, 3) end
  for key in pairs(options) do
    if not table.find(known, key) then
      error(`{name}: unknown option \`{tostring(key)}\`; it takes {table.concat(known, ", ")}`, 3)
    end
  end
  return options
end
