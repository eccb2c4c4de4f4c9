-- A module that requires itself.
-- expect: refused
-- says: requires itself
return require("require_itself")
