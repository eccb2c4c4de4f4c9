-- An error that is nil.
-- expect: env_error
-- says: nil
return { reset = function() error(nil) end }
