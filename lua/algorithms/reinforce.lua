--- REINFORCE (Williams 1992): the policy gradient without a ratio.
return r1.algorithm {
  paper = "Williams 1992",
  about = "the policy gradient without a ratio",
  loss = function(b)
    return -b.advantages * b.logp
  end,
}
