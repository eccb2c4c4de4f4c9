-- A comparison that sorts, endlessly.
-- expect: env_error
-- message: stack overflow
local function f() table.sort({ 2, 1 }, f) return true end
return { reset = function() f() return { messages = {} } end }
