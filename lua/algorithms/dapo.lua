--- DAPO (arXiv:2503.14476): PPO's clip with a higher upper bound.
return r1.algorithm {
  paper = "arXiv:2503.14476",
  about = "PPO's clip with a higher upper bound",
  remarks = "`filter.uniform`",
  estimator = "grpo",
  loss = { name = "ppo", clip_high = 0.28, dual_clip = false },
  trainer = { filter = { uniform = true } },
}
