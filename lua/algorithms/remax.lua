--- ReMax (arXiv:2310.10505): the return minus that of a greedy rollout of the same task.
return r1.algorithm {
  paper = "arXiv:2310.10505",
  remarks = "one sample per task, and a greedy baseline rollout",
  estimator = "remax",
  trainer = { group_size = 1, groups_per_step = 128 },
}
