-- require of a file outside the script's directory during loading.
-- expect: refused
-- message: is not inside the script's directory
return require("../outside")
