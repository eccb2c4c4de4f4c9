--- GPG (arXiv:2504.02546): the loss of REINFORCE with the advantages of the estimator `gpg`.
return r1.algorithm {
  paper = "arXiv:2504.02546",
  about = "`reinforce`, for the estimator `gpg`",
  estimator = "gpg",
  loss = "reinforce",
}
