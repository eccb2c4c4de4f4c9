--- REINFORCE++ with the baseline of the group (arXiv:2501.03262), whitened over the batch.
return r1.algorithm {
  paper = "arXiv:2501.03262",
  estimator = "reinforce_pp_baseline",
}
