--- GMPO (arXiv:2507.20673, eq. 4): the geometric mean of the token ratios of a sequence, each
--- clipped in log space in the direction of its advantage. Each token has the loss of its sequence.
--- A step is one term of the mean by default, because its ratio and its advantage belong together.
return r1.algorithm {
  paper = "arXiv:2507.20673",
  about = "the geometric mean of the clipped ratios of a sequence (GMPO)",
  options = {
    clip_low = { 0.4, from = 0 },
    clip_high = { 0.4, from = 0 },
    loss_agg = "seq-mean-token-mean",
    seq = "step",
    ratio_over = "step",
  },
  one_advantage_per_sequence = true,
  loss = function(b, options)
    local unit = options.ratio_over
    local log_ratio, sign = b.logp - b.logp_old, b.advantages:sign()
    local clamped = log_ratio:clamp(-options.clip_low, options.clip_high)
    local outside = log_ratio:ne(clamped)
    local low = outside:logical_and(b.advantages:lt(0))
    local high = outside:logical_and(b.advantages:gt(0))
    b:ratio_stats(log_ratio:clamp(-20, 20):exp(), low, high)
    local ratio = ((sign * log_ratio):min(sign * clamped) * sign):mean(unit):exp()
    local weight = b.weights:clamp(1e-10):log():mean(unit):exp()
    return -b.advantages:mean(unit) * ratio * weight
  end,
}
