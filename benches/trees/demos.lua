--- Makes the model that trees are measured with: it plays the vault as somebody does who is right three times in four.
local vault = require("./vault")

return r1.recipe {
  env = r1.env { format = "retool" },
  policy = {
    init = {
      hidden_size = 64,
      intermediate_size = 192,
      num_hidden_layers = 2,
      num_attention_heads = 4,
      num_key_value_heads = 2,
      max_position_embeddings = 512,
      vocab_size = 320,
      tokenizer_rows = 400,
    },
  },
  data = { train = r1.data.generate { count = 20000, seed = 3, row = vault.demonstration } },
  trainer = r1.sft { steps = 300, batch_size = 32, lr = 2e-3, tokens_per_batch = 8192 },
}
