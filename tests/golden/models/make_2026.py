"""Makes golden_2026.*: what transformers computes with random configurations of the families that make.py does not have.

    pip install torch==2.11.0 transformers==5.24.0 peft==0.21.2 && python make_2026.py

Every family has at least six configurations, whose fields are drawn from the name of the case. The format is that of
golden.json, with shorter rows and 24 greedy tokens. `python make_2026.py FAMILY` prints the cases of a family only.
golden_2026_lora.* holds an adapter of PEFT for the first configuration of each family.
golden_mxfp4.json holds blocks of MXFP4 and what transformers makes of them.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

from make import ROPES, YARN, case, lora, make, uniform

here = Path(__file__).parent


class Draw:
    """Choices that depend on the name of the case."""

    def __init__(self, name):
        self.name, self.count = name, 0

    def __call__(self, *choices):
        self.count += 1
        return choices[int((uniform(f"{self.name} choice {self.count}", 1)[0] + 1) / 2 * len(choices))]


def sizes(draw):
    kv_heads, group = draw(1, 2), draw(1, 2, 3)
    return {
        "vocab_size": 64,
        "hidden_size": draw(24, 32, 40),
        "intermediate_size": draw(20, 28, 36),
        "num_hidden_layers": draw(2, 3),
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 48,
        "rms_norm_eps": draw(1e-5, 1e-6, 1e-3),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def rope(draw, *kinds):
    kinds = kinds or ("default", "linear", "yarn", "llama3", "options")
    kind = draw(*kinds)
    scaling = YARN if kind == "options" else ROPES[kind]
    return {**scaling, "rope_theta": draw(100.0, 500.0, 20000.0)}


def layer_types(draw, layers, first="sliding_attention"):
    """Random types, both of them."""
    types = [draw("full_attention", "sliding_attention") for _ in range(layers)]
    return [first, "full_attention", *types][:layers]


def gpt_oss(draw):
    own = sizes(draw) | {"head_dim": draw(8, 12), "num_local_experts": draw(4, 5, 6), "num_experts_per_tok": draw(1, 2, 3)}
    own |= {"sliding_window": draw(6, 10, 16), "rope_parameters": rope(draw), "swiglu_limit": draw(0.5, 1.0, 7.0)}
    own |= {"swiglu_alpha": draw(1.702, 1.3), "attention_bias": draw(True, True, False)}
    own |= {"layer_types": layer_types(draw, own["num_hidden_layers"]), "tie_word_embeddings": draw(False, False, True)}
    return transformers.GptOssConfig(**own)


def olmo2(draw):
    own = sizes(draw) | {"head_dim": draw(8, 12), "rope_parameters": rope(draw), "attention_bias": draw(False, True)}
    return transformers.Olmo2Config(**own, tie_word_embeddings=draw(False, True))


def olmo3(draw):
    own = sizes(draw) | {"head_dim": draw(8, 12), "sliding_window": draw(6, 10, 16), "attention_bias": draw(False, True)}
    own |= {"layer_types": layer_types(draw, own["num_hidden_layers"]), "tie_word_embeddings": draw(False, True)}
    sliding = {"rope_type": "default", "rope_theta": draw(100.0, 5000.0)}
    own["rope_parameters"] = {"full_attention": rope(draw), "sliding_attention": sliding}
    return transformers.Olmo3Config(**own)


def glm4_moe(draw):
    own = sizes(draw) | {"head_dim": draw(8, 16), "attention_bias": draw(False, True), "use_qk_norm": draw(False, True)}
    own |= {"n_routed_experts": 8, "n_group": draw(1, 2, 4), "num_experts_per_tok": draw(1, 2, 3)}
    own |= {"topk_group": draw(1, own["n_group"]) if own["num_experts_per_tok"] < 3 else own["n_group"]}
    own |= {"n_shared_experts": draw(1, 2), "moe_intermediate_size": draw(12, 20), "norm_topk_prob": draw(True, True, False)}
    own |= {"routed_scaling_factor": draw(1.0, 2.5), "first_k_dense_replace": draw(0, 1), "num_nextn_predict_layers": 0}
    own |= {"rope_parameters": rope(draw) | {"partial_rotary_factor": draw(0.5, 0.5, 1.0)}}
    return transformers.Glm4MoeConfig(**own)


def qwen2_moe(draw):
    own = sizes(draw) | {"head_dim": draw(8, 12), "rope_parameters": rope(draw), "qkv_bias": draw(True, True, False)}
    own |= {"num_experts": draw(3, 5), "num_experts_per_tok": draw(1, 2), "moe_intermediate_size": draw(12, 20)}
    own |= {"shared_expert_intermediate_size": draw(16, 24), "norm_topk_prob": draw(False, True)}
    own |= {"decoder_sparse_step": draw(1, 1, 2), "mlp_only_layers": draw([], [0]), "tie_word_embeddings": draw(False, True)}
    own |= {"use_sliding_window": draw(False, True), "sliding_window": draw(6, 16), "max_window_layers": draw(1, 3)}
    return transformers.Qwen2MoeConfig(**own)


def granite(draw):
    own = sizes(draw) | {"head_dim": draw(8, 12), "rope_parameters": rope(draw), "attention_bias": draw(False, True)}
    own |= {"mlp_bias": draw(False, True), "embedding_multiplier": draw(12.0, 3.0)}
    own |= {"logits_scaling": draw(0.5, 1.5, 2.0), "residual_multiplier": draw(0.22, 0.7), "attention_multiplier": draw(0.1, 0.5)}
    return transformers.GraniteConfig(**own)


def ministral(draw):
    own = sizes(draw) | {"head_dim": draw(8, 12), "rope_parameters": rope(draw), "sliding_window": draw(6, 10, 16)}
    own |= {"layer_types": layer_types(draw, own["num_hidden_layers"]), "tie_word_embeddings": draw(False, True)}
    return transformers.MinistralConfig(**own)


def glm4(draw):
    own = sizes(draw) | {"head_dim": draw(8, 16), "attention_bias": draw(False, True), "tie_word_embeddings": draw(False, True)}
    own |= {"rope_parameters": rope(draw) | {"partial_rotary_factor": draw(0.5, 0.5, 1.0)}}
    return transformers.Glm4Config(**own)


def phi3(draw):
    own = sizes(draw) | {"head_dim": draw(8, 16), "tie_word_embeddings": draw(False, True)}
    own |= {"rope_parameters": rope(draw, "default") | {"partial_rotary_factor": draw(0.5, 0.75, 1.0)}}
    own |= {"sliding_window": draw(None, 6, 16)}
    if int(draw.name.split()[1]) > VARIANTS:
        # With LongRoPE the class requires head_dim = hidden_size / num_attention_heads.
        own |= {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": draw(1, 2, 4), "head_dim": 8}
        pairs = int(own["head_dim"] * own["rope_parameters"]["partial_rotary_factor"]) // 2
        factors = lambda name, scale: [1 + scale * (1 + value) for value in uniform(f"{draw.name} {name}", pairs)]
        # The class has the original context outside of the rotary parameters.
        own |= {"max_position_embeddings": draw(192, 384), "original_max_position_embeddings": 96}
        own["rope_parameters"] |= {"rope_type": "longrope", "short_factor": factors("short", 0.5), "long_factor": factors("long", 8)}
    return transformers.Phi3Config(**own)


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EVERYTHING = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
FAMILIES = {family.__name__: family for family in [gpt_oss, olmo2, olmo3, glm4_moe, qwen2_moe, granite, ministral, glm4, phi3]}
# Projections with an adapter, where they are not all.
TARGETS = {"glm4": ["q_proj", "gate_up_proj", "down_proj"], "phi3": ["qkv_proj", "o_proj", "gate_up_proj"]}
TARGETS |= {"gpt_oss": ATTENTION, "glm4_moe": ATTENTION, "qwen2_moe": ATTENTION}
VARIANTS = 6
# Further ones, with LongRoPE.
MORE = {"phi3": 3}


def cases(families):
    for family in families:
        for number in range(1, VARIANTS + MORE.get(family, 0) + 1):
            name = f"{family} {number}"
            yield name, FAMILIES[family](Draw(name))


def adapters():
    from peft import LoraConfig

    for family in FAMILIES:
        targets = TARGETS.get(family, EVERYTHING)
        own = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=5, target_modules=targets)
        yield f"lora {family}", (FAMILIES[family](Draw(f"{family} 1")), own)


def short(name, config):
    """A case with rounded norms in the order of the checkpoint's names."""
    record, logits = case(name, config, lengths=(24, 70), positions=[[0, 13, 23], [0, 40, 47, 69]], new_tokens=24)
    norms = record["gradient_norms"]
    # Buffers, such as the correction of a router, have no gradients.
    norms = [norms.get(key, [0.0, 0.0]) for key in record["checkpoint"]]
    record["gradient_norms"] = [[float(f"{norm:.7g}") for norm in both] for both in norms]
    return record, logits


def mxfp4():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shape = (2, 4, 2, 16)
    bytes_of = lambda name, count: [int((value + 1) / 2 * 256) for value in uniform(name, count)]
    blocks = torch.tensor(bytes_of("mxfp4 blocks", 256), dtype=torch.uint8).view(shape)
    scales = torch.tensor([scale % 24 + 115 for scale in bytes_of("mxfp4 scales", 16)], dtype=torch.uint8).view(shape[:3])
    weights = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return {
        "shape": shape,
        "blocks": blocks.flatten().tolist(),
        "scales": scales.flatten().tolist(),
        "weights_shape": list(weights.shape),
        "weights": weights.flatten().tolist(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if sys.argv[1:]:
        for name, config in cases(sys.argv[1:]):
            short(name, config)
    else:
        (here / "golden_mxfp4.json").write_text(json.dumps(mxfp4()) + "\n")
        make("golden_2026", cases(FAMILIES), short)
        make("golden_2026_lora", adapters(), lambda name, both: lora(name, *both, length=12))
