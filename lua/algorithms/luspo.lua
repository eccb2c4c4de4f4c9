--- LUSPO (arXiv:2602.05261): GSPO with every sequence weighted by its length.
return r1.algorithm {
  paper = "arXiv:2602.05261",
  about = "`gspo` with every sequence weighted by its length",
  estimator = "grpo",
  loss = { name = "gspo", loss_agg = "seq-mean-token-sum" },
}
