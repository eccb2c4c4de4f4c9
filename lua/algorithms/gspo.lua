--- GSPO (arXiv:2507.18071, eq. 5 and the token form of eq. 14): PPO's clip on the ratio of a whole
--- sequence, exp(mean of logp - logp_old). The gradient goes through the ratio of each token.
return r1.algorithm {
  paper = "arXiv:2507.18071",
  about = "the clipped ratio of a whole sequence",
  estimator = "grpo",
  options = {
    clip_low = { 3e-4, from = 0, to = 1 },
    clip_high = { 4e-4, from = 0 },
    loss_agg = "seq-mean-token-mean",
    ratio_over = "step",
  },
  one_advantage_per_sequence = true,
  loss = function(b, options)
    local of_sequence = (b.logp - b.logp_old):detach():mean(options.ratio_over)
    local ratio = ((b.logp - b.logp:detach()) + of_sequence):clamp(nil, 10):exp()
    b:ratio_stats(ratio, options.clip_low, options.clip_high)
    local push = -b.advantages
    return (push * ratio):max(push * ratio:clamp(1 - options.clip_low, 1 + options.clip_high))
  end,
}
