--- RAPO of TableMind (arXiv:2509.06278): GRPO with a factor for pairs whose winner is not preferred
--- yet.
return r1.algorithm {
  paper = "arXiv:2509.06278",
  estimator = "rapo",
}
