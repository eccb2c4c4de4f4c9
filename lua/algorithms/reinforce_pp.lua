--- REINFORCE++ (arXiv:2501.03262): discounted returns of tokens, whitened over the batch.
return r1.algorithm {
  paper = "arXiv:2501.03262",
  remarks = "128 tasks, one sample each",
  estimator = "reinforce_pp",
  trainer = { group_size = 1, groups_per_step = 128 },
}
