--- CISPO (MiniMax-M1, arXiv:2506.13585, eq. 4): every token keeps a gradient, with a bounded
--- weight. clip_low = 1 is no lower bound; TRL's epsilon_high is 1 + clip_high.
return r1.algorithm {
  paper = "arXiv:2506.13585",
  about = "the policy gradient with a bounded ratio as weight",
  estimator = "grpo",
  options = {
    clip_low = { 0.2, from = 0, to = 1 },
    clip_high = { 0.2, from = 0 },
  },
  loss = function(b, options)
    local low, high = 1 - options.clip_low, 1 + options.clip_high
    local ratio = (b.logp - b.logp_old):clamp(-20, 20):detach():exp()
    b:ratio_stats(ratio, ratio:lt(low), ratio:gt(high))
    return -(ratio:clamp(low, high) * b.advantages) * b.logp
  end,
}
