--- Makes the model that trees are measured with: it plays the vault as somebody does who is right three times in four.
return require("./vault").demos(false)
