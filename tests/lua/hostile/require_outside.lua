-- require of a file outside of the script's directory, while it loads.
-- expect: refused
-- says: is not inside the script's directory
return require("../outside")
