--- OPO (arXiv:2505.23585): the return minus the baseline of least variance.
return r1.algorithm {
  paper = "arXiv:2505.23585",
  estimator = "opo",
}
