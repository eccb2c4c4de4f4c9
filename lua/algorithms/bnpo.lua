--- BNPO of TRL: PPO's clip without the dual clip, with a mean over the tokens of the mini-batch.
return r1.algorithm {
  paper = "TRL",
  about = "PPO's clip without the dual clip, per token",
  loss = { name = "ppo", dual_clip = false },
}
