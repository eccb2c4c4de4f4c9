--- Makes a model that is sure of every door but the last.
return require("./vault").demos(true)
