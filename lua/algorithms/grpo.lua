--- GRPO (arXiv:2402.03300): advantages within groups, and PPO's clip.
return r1.algorithm {
  paper = "arXiv:2402.03300",
  remarks = "groups of 8",
  estimator = "grpo",
}
