--- The vault, for a model that is certain of every door but the last.
return require("./vault").recipe(false)
