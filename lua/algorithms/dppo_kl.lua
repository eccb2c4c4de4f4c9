--- DPPO with the KL divergence (arXiv:2602.04879): as dppo_tv, with the KL divergence between "this
--- token" and "another token" under the behaviour and the current policy.
return r1.algorithm {
  paper = "arXiv:2602.04879",
  about = "a trust region in KL divergence",
  options = {
    clip_low = { 0.2, from = 0 },
    clip_high = { 0.2, from = 0 },
    truncate = { 20, above = 0 },
  },
  loss = function(b, options)
    local logp = b.logp:detach()
    local p, p_old = logp:exp(), b.logp_old:exp()
    local others = ((1 - p_old + 1e-8) / (1 - p + 1e-8)):log()
    local kl = p_old * (b.logp_old - logp) + (1 - p_old) * others
    local low = kl:gt(options.clip_low):logical_and(p:lt(p_old)):logical_and(b.advantages:le(0))
    local high = kl:gt(options.clip_high):logical_and(p:gt(p_old)):logical_and(b.advantages:gt(0))
    local ratio = (logp - b.logp_old):clamp(-20, 20):exp()
    b:ratio_stats(ratio, low, high)
    local inside = b:where(low:logical_or(high), 0, 1)
    return -(ratio:clamp(nil, options.truncate) * inside * b.advantages) * b.logp
  end,
}
