--- SAPO (arXiv:2511.20347): a soft gate instead of a clip, with a temperature by the sign of the
--- advantage.
return r1.algorithm {
  paper = "arXiv:2511.20347",
  about = "a soft gate instead of the clip",
  estimator = "grpo",
  options = {
    tau_pos = { 1, above = 0 },
    tau_neg = { 1.05, above = 0 },
    loss_agg = "seq-mean-token-mean",
  },
  loss = function(b, options)
    local ratio = (b.logp - b.logp_old):clamp(-20, 20):exp()
    local tau = b:where(b.advantages:gt(0), options.tau_pos, options.tau_neg)
    local gate = ((ratio - 1) * tau):sigmoid() * 4 / tau
    return -(gate * b.advantages)
  end,
}
