-- A module that requires itself.
-- expect: refused
-- message: requires itself
return require("require_itself")
