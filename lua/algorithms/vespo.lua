--- VESPO (arXiv:2602.10693): the policy gradient, with a weight for each sequence by its ratio w,
--- the product of its token ratios and off-policy weights: phi(w) = e^lambda w^k e^(-lambda w),
--- which is 1 at w = 1. k is the rate at which sequences that have become unlikely lose weight,
--- lambda the rate for those that have become likely; both by the sign of the advantage.
return r1.algorithm {
  paper = "arXiv:2602.10693",
  about = "the policy gradient, weighted by a gamma form of the sequence's ratio",
  estimator = "grpo",
  options = {
    k_pos = { 2, from = 0 },
    lambda_pos = { 3, from = 0 },
    k_neg = { 3, from = 0 },
    lambda_neg = { 2, from = 0 },
    ratio_over = "step",
  },
  loss = function(b, options)
    local unit = options.ratio_over
    local log_ratio = (b.logp:detach() - b.logp_old):clamp(-20, 20)
    local log_weights = b.weights:clamp(1e-8):log():clamp(nil, 20)
    local log_w = (log_ratio:sum(unit) + log_weights:sum(unit)):clamp(math.log(1e-8), 20)
    local function phi(k, lambda)
      lambda = math.max(lambda, 1e-4)
      return (log_w * k - log_w:exp() * lambda + lambda):exp()
    end
    local positive, negative = phi(options.k_pos, options.lambda_pos), phi(options.k_neg, options.lambda_neg)
    return -(b:where(b.advantages:lt(0), negative, positive) * b.advantages) * b.logp
  end,
}
