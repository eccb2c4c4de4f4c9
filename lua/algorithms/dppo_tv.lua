--- DPPO with the total variation (arXiv:2602.04879): a trust region in probabilities instead of
--- ratios. Tokens that the advantage pushes further out of it have no gradient; the others have the
--- policy gradient, with the ratio up to truncate as weight.
return r1.algorithm {
  paper = "arXiv:2602.04879",
  about = "a trust region in total variation",
  options = {
    clip_low = { 0.2, from = 0 },
    clip_high = { 0.2, from = 0 },
    truncate = { 20, above = 0 },
  },
  loss = function(b, options)
    local moved = b.logp:detach():exp() - b.logp_old:exp()
    local low = moved:lt(-options.clip_low):logical_and(b.advantages:le(0))
    local high = moved:gt(options.clip_high):logical_and(b.advantages:gt(0))
    local ratio = (b.logp - b.logp_old):clamp(-20, 20):detach():exp()
    b:ratio_stats(ratio, low, high)
    local inside = b:where(low:logical_or(high), 0, 1)
    return -(ratio:clamp(nil, options.truncate) * inside * b.advantages) * b.logp
  end,
}
