--- Trains the model of the tree benchmarks on demonstrations of the vault that are right with
--- probability 3/4.
return require("./vault").demos(false)
