-- Expressions nested too deeply to be read.
-- expect: refused
-- says: load_nesting.lua
return ((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((
