--- The baseline of least variance per token, as in verl 0.9.1.
return r1.algorithm {
  paper = "verl 0.9.1",
  remarks = "a baseline per token",
  estimator = "optimal_token_baseline",
}
