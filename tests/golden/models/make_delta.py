"""Makes golden_delta.* of this folder: what transformers computes with small models whose layers are Gated DeltaNets and gated
attention (Qwen3.5, Qwen3.5-MoE, Qwen3-Next), or short convolutions and attention (LFM2). The format is that of make.py, whose
weights and records these are.

    pip install torch==2.11.0 transformers==5.24.0 && python make_delta.py

Seven configurations of each family, drawn from a seed: sizes, kinds of layers, experts, biases, ties, rotary embeddings. Rows
are longer than a block of the gated delta rule, so that a state goes from one block to the next.
"""

import random

import torch
from transformers import Lfm2Config, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

from make import SIZES, case, make

KINDS = {"qwen3_5": Qwen3_5TextConfig, "qwen3_5_moe": Qwen3_5MoeTextConfig, "qwen3_next": Qwen3NextConfig, "lfm2": Lfm2Config}
ROPES = [{"rope_type": "default"}, {"rope_type": "linear", "factor": 3.0}, {"rope_type": "default", "partial_rotary_factor": 0.5}]


def fields(family, draw):
    layers = draw.choice([2, 3, 4])
    linear = "conv" if family == "lfm2" else "linear_attention"
    kinds = [linear, "full_attention"] + [draw.choice([linear, "full_attention"]) for _ in range(layers - 2)]
    draw.shuffle(kinds)
    if family == "lfm2":
        return {
            "num_hidden_layers": layers,
            "layer_types": kinds,
            "hidden_size": draw.choice([24, 32, 40]),
            "num_attention_heads": 4,
            "num_key_value_heads": draw.choice([1, 2, 4]),
            "conv_L_cache": draw.choice([2, 3, 4]),
            "block_auto_adjust_ff_dim": draw.random() < 0.5,
            "block_ffn_dim_multiplier": draw.choice([1.0, 1.25]),
            "block_multiple_of": 8,
            "tie_word_embeddings": draw.random() < 0.5,
            "norm_eps": draw.choice([1e-6, 1e-5]),
            "max_position_embeddings": 256,
            "rope_parameters": {"rope_theta": draw.choice([500.0, 10000.0]), **draw.choice(ROPES[:2])},
        }
    key_heads = draw.choice([1, 2, 3])
    own = {
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "hidden_size": draw.choice([24, 32, 40]),
        "head_dim": draw.choice([8, 16, 24]),
        "num_attention_heads": 4,
        "num_key_value_heads": draw.choice([1, 2, 4]),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw.choice([1, 2, 3]),
        "linear_key_head_dim": draw.choice([4, 8, 12]),
        "linear_value_head_dim": draw.choice([4, 6, 16]),
        "linear_conv_kernel_dim": draw.choice([2, 3, 4]),
        "attention_bias": draw.random() < 0.3,
        "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice([1e-6, 1e-5]),
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_theta": draw.choice([500.0, 10000.0]), **draw.choice(ROPES)},
    }
    if family == "qwen3_5":
        return own
    own |= {"num_experts": draw.choice([3, 6]), "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    own["shared_expert_intermediate_size"] = draw.choice([12, 28])
    if family == "qwen3_next":
        own["norm_topk_prob"] = draw.random() < 0.5
        own["mlp_only_layers"] = draw.choice([[], [0]])
    return own


def cases():
    for family, kind in KINDS.items():
        for index in range(7):
            draw = random.Random(f"{family} {index}")
            own = {"qwen3_5_moe": ["intermediate_size"], "lfm2": ["rms_norm_eps"]}.get(family, [])
            sizes = {name: size for name, size in SIZES.items() if name not in own}
            yield f"{family} {index}", kind(**(sizes | fields(family, draw)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    make("golden_delta", list(cases()), case)
