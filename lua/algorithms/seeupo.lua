--- SeeUPO (arXiv:2602.06554): GSPO over steps, with one optimiser step per step number of the
--- trajectories, the last first.
return r1.algorithm {
  paper = "arXiv:2602.06554",
  remarks = "`mini_batch_by = \"step\"`: updates on the last steps first",
  estimator = { name = "grpo", normalize = "none" },
  loss = { name = "gspo", seq = "step" },
  trainer = { mini_batch_by = "step" },
}
