-- An error object whose __tostring does not end.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
return {
  reset = function()
    error(setmetatable({}, { __tostring = function() while true do end end }))
  end,
}
