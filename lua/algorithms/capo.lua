--- CAPO (arXiv:2604.18401, first published as StepPO): PPO with an advantage and a ratio per
--- action, the length-normalised ratio of GSPO with the clip range of the paper.
return r1.algorithm {
  paper = "arXiv:2604.18401",
  remarks = "as `ppo`, with advantage and ratio per action (first published as StepPO)",
  critic = true,
  estimator = "gae",
  loss = { name = "gspo", seq = "step", clip_low = 3e-4, clip_high = 3e-4 },
  trainer = { group_size = 1, groups_per_step = 128 },
}
