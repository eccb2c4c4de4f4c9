--- KL-Cov (arXiv:2505.22617): the ratio without a clip, with a penalty on the tokens of the highest
--- covariance of advantage and log-probability.
return r1.algorithm {
  paper = "arXiv:2505.22617",
  about = "the ratio, with a penalty on the tokens of the highest covariance",
  options = {
    share = { 2e-4, from = 0, to = 1 },
    cov_coef = { 1, from = 0 },
  },
  loss = function(b, options)
    local log_ratio = (b.logp - b.logp_old):clamp(-20, 20)
    local highest = b:largest(b:covariance(b.advantages, b.logp), options.share)
    local penalty = log_ratio:abs() * options.cov_coef * b:where(highest, 1, 0)
    return -b.advantages * log_ratio:exp() + penalty
  end,
}
