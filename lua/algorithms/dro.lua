--- DRO (direct reward optimisation, arXiv:2405.19107) in verl's form. The square keeps the policy
--- near the behaviour policy, also at tokens with advantage 0.
return r1.algorithm {
  paper = "arXiv:2405.19107",
  about = "the policy gradient with a squared penalty on the log ratio",
  estimator = "grpo",
  options = { beta = { 0.1, above = 0 } },
  loss = function(b, options)
    local log_ratio = b.logp - b.logp_old
    return log_ratio ^ 2 * (0.5 * options.beta) - b.advantages * b.logp
  end,
}
