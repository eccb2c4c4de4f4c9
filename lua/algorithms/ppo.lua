--- PPO (arXiv:1707.06347) with a critic: GAE over steps, which are decisions (arXiv:2511.14460).
return r1.algorithm {
  paper = "arXiv:1707.06347",
  remarks = "a critic; steps are decisions (arXiv:2511.14460); 128 tasks, one sample each",
  critic = true,
  estimator = "gae",
  trainer = { group_size = 1, groups_per_step = 128 },
}
