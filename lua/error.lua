-- `error` for scripts: adds a text to an error table without one, so that it does not print as an
-- address.
local show = ...
local raise = error

return function(value, level)
  level = level or 1
  if type(value) == "table" and getmetatable(value) == nil and not table.isfrozen(value) then
    local text = show(value)
    setmetatable(value, { __tostring = function() return text end })
  end
  raise(value, level > 0 and level + 1 or 0)
end
