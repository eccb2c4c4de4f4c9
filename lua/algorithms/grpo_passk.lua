--- Pass@k in the form of GRPO (arXiv:2503.19595): the best of a group against the second best.
return r1.algorithm {
  paper = "arXiv:2503.19595",
  estimator = "grpo_passk",
}
