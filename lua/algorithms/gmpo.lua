--- GMPO (arXiv:2507.20673): the loss geo_mean.
return r1.algorithm {
  paper = "arXiv:2507.20673",
  estimator = "grpo",
  loss = "geo_mean",
}
