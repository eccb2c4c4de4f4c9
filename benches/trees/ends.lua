--- The vault: the first wrong door is the end.
return require("./vault").recipe(true)
