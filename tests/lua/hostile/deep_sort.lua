-- A comparison that sorts, without end.
-- expect: env_error
-- says: stack overflow
local function f() table.sort({ 2, 1 }, f) return true end
return { reset = function() f() return { messages = {} } end }
