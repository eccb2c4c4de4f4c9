--- GiGPO (arXiv:2505.10978): GRPO, and a comparison of steps with the same observation.
return r1.algorithm {
  paper = "arXiv:2505.10978",
  estimator = "gigpo",
}
