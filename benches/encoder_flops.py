"""Operations of a passage in encoders, counted by torch, and the hours of an H100 for 5 million passages.

    python3 benches/encoder_flops.py      needs torch and transformers; no weights are loaded

The counter has the products of matrices and of attention. It counts the whole square of attention, of which a causal mask needs
half; a decoder's row is without the other half.
"""

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model, XLMRobertaConfig, XLMRobertaModel

PASSAGES = 5_000_000
# Dense bf16 operations per second of an H100 SXM, by its data sheet, and the assumed share of them.
PEAK, SHARE = 989e12, 0.4
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
QWEN = {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
MODELS = {
    "bge-base-en-v1.5": (BertModel, BertConfig()),
    "bge-m3": (XLMRobertaModel, XLMRobertaConfig(**LARGE, vocab_size=250002, max_position_embeddings=8194)),
    "Qwen3-Embedding-0.6B": (Qwen3Model, Qwen3Config(**QWEN, intermediate_size=3072, vocab_size=151669)),
}


def count(kind, config, tokens):
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = kind(config).eval()
        ids = torch.zeros(1, tokens, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(ids)
    total = counter.get_total_flops()
    if kind is Qwen3Model:
        total -= 2 * tokens**2 * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return total


if __name__ == "__main__":
    print("| model | tokens | GFLOP per passage | hours for 5 million on an H100 |\n|---|---|---|---|")
    for name, (kind, config) in MODELS.items():
        for tokens in (128, 512):
            operations = count(kind, config, tokens)
            hours = PASSAGES * operations / (PEAK * SHARE) / 3600
            print(f"| {name} | {tokens} | {operations / 1e9:.1f} | {hours:.2f} |")
