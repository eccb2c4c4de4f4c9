--- PSPO (arXiv:2601.10029): GSPO over steps with a KL penalty, for the estimator `gae`.
return r1.algorithm {
  paper = "arXiv:2601.10029",
  about = "`gspo` over steps with a KL penalty, for `gae`",
  remarks = "as `ppo`, and a reference policy",
  critic = true,
  estimator = "gae",
  loss = { name = "gspo", seq = "step", kl_coef = 1e-3 },
  trainer = { group_size = 1, groups_per_step = 128 },
}
