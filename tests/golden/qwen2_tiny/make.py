"""Makes the numbers of this folder: a random Qwen2 model and what transformers computes with it.

    pip install torch transformers && python make.py

config.json and model.safetensors are as transformers saves them; golden.safetensors holds, for rows of different
lengths, the logits, the log-probabilities and entropies at a temperature, and the gradients of a loss of both.
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

TEMPERATURE = 0.7
here = Path(__file__).parent
torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=72,
    hidden_size=40,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.15,
    rope_theta=5000.0,
    tie_word_embeddings=False,
    attn_implementation="eager",
)
model = Qwen2ForCausalLM(config)
with torch.no_grad():
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.2 * torch.randn_like(parameter))
model.save_pretrained(here)
(here / "generation_config.json").unlink(missing_ok=True)

lengths = [3, 19, 70, 1, 8]
rows = [torch.randint(config.vocab_size, (length,)).tolist() for length in lengths]
logits, logps, entropies = [], [], []
for row in rows:
    own = model(torch.tensor([row])).logits[0]
    logits.append(own)
    log_all = (own[:-1] / TEMPERATURE).log_softmax(-1)
    logps.append(log_all.gather(1, torch.tensor(row[1:]).view(-1, 1))[:, 0])
    entropies.append(-(log_all.exp() * log_all).sum(-1))
logp, entropy = torch.cat(logps), torch.cat(entropies)
loss = -logp.mean() - 0.1 * entropy.mean()
loss.backward()

tensors = {"logits": torch.cat(logits), "logp": logp, "entropy": entropy}
tensors |= {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, here / "golden.safetensors")
record = {
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "rows": rows,
    "temperature": TEMPERATURE,
    "loss": loss.item(),
}
(here / "golden.json").write_text(json.dumps(record) + "\n")
