--- GDPO (arXiv:2601.05242): GRPO over the named parts of the reward.
return r1.algorithm {
  paper = "arXiv:2601.05242",
  remarks = "each named part of the reward is normalised separately",
  estimator = "gdpo",
}
