-- Every level of pcall calls two more: the depth is bounded, the time is not.
-- expect: script_limit
-- message: reset used more than 0.1 s of CPU time
local function f()
  pcall(f)
  pcall(f)
end
return { reset = function() f() return { messages = {} } end }
