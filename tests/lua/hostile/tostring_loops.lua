-- Printing a value whose __tostring does not end.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    print(setmetatable({}, { __tostring = function() while true do end end })) -- here
  end,
}
