--- The vault, for a model that is sure of every door but the last.
return require("./vault").recipe(false)
