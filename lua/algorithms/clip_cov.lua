--- Clip-Cov (arXiv:2505.22617, section 4.2): PPO's clip without the gradient of a few tokens, drawn
--- among those that the clip leaves alone and whose covariance of advantage and log-probability is
--- between two bounds. The covariance is the token's contribution to the decrease of the entropy.
return r1.algorithm {
  paper = "arXiv:2505.22617",
  about = "PPO's clip, without the gradient of some tokens of high covariance",
  options = {
    clip_low = { 0.2, from = 0, to = 1 },
    clip_high = { 0.2, from = 0 },
    share = { 2e-4, from = 0, to = 1 },
    cov_low = 1,
    cov_high = 5,
    seed = { 0, from = 0 },
  },
  loss = function(b, options)
    local low, high = 1 - options.clip_low, 1 + options.clip_high
    local ratio, push = (b.logp - b.logp_old):clamp(-20, 20):exp(), -b.advantages
    b:ratio_stats(ratio, options.clip_low, options.clip_high)
    local falls = ratio:lt(low):logical_and(push:gt(0))
    local rises = ratio:gt(high):logical_and(push:lt(0))
    local covariance = b:covariance(b.advantages, b.logp)
    local inside = covariance:gt(options.cov_low):logical_and(covariance:lt(options.cov_high))
    local candidates = inside:logical_and(falls:logical_or(rises):logical_not())
    local kept = b:where(b:draw(candidates, options.share, options.seed), 0, 1)
    return (push * ratio):max(push * ratio:clamp(low, high)) * kept
  end,
}
