--- Dr. GRPO (arXiv:2503.20783): PPO's clip. The sum of the token losses of a sequence is divided by
--- the longest sequence of the mini-batch, or by the option horizon.
return r1.algorithm {
  paper = "arXiv:2503.20783",
  about = "PPO's clip, divided by the longest sequence",
  estimator = { name = "grpo", normalize = "none" },
  loss = { name = "ppo", dual_clip = false, loss_agg = "seq-mean-token-sum-norm" },
}
