--- MaxRL (arXiv:2602.02710): the return minus the mean of the group, over that mean.
return r1.algorithm {
  paper = "arXiv:2602.02710",
  estimator = "max_rl",
}
