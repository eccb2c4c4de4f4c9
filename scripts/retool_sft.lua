--- Supervised fine-tuning on demonstrations of ReTool (arXiv:2504.11536), the cold start before
--- scripts/retool.lua. The rows are JoeYing/ReTool-SFT from the Hugging Face Hub: one column
--- `messages`, the assistant's text with <code>…</code>, <interpreter>…</interpreter> and
--- <answer>…</answer>. Interpreter output has no loss.
---
---   r1 sft scripts/retool_sft.lua --out models/retool-sft
---   r1 sft scripts/retool_sft.lua data.train=retool.jsonl data.eval=held_out.jsonl \
---     eval.every=10 trainer.patience=3
---   r1 run scripts/retool.lua policy.model=models/retool-sft

return r1.recipe {
  env = r1.env { format = "retool" },
  policy = { model = "Qwen/Qwen2.5-1.5B-Instruct" },
  data = { train = r1.data.hf "JoeYing/ReTool-SFT" { split = "train" } },
  -- Two epochs of the 2,000 published rows.
  trainer = r1.sft {
    steps = 125,
    batch_size = 32,
    lr = 1e-5,
    warmup = 10,
    max_length = 16384,
    overlong = "skip",
    gradient_checkpointing = true,
  },
  checkpoint = { every = 25 },
}
