--- The vault; all rooms are played.
return require("./vault").recipe(false)
