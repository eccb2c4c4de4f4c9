--- The vault; the first wrong door ends the game.
return require("./vault").recipe(true)
