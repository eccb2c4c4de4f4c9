--- RLOO (arXiv:2402.14740): the return minus the mean of the others in the group.
return r1.algorithm {
  paper = "arXiv:2402.14740",
  estimator = "rloo",
}
