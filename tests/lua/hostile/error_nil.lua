-- An error that is nil.
-- expect: env_error
-- message: nil
return { reset = function() error(nil) end }
