-- Expressions nested too deeply to be parsed.
-- expect: refused
-- message: load_nesting.lua
return ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((
