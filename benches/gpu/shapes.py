"""Writes a model with random weights in Hugging Face layout: shapes.py DIR KIND [TOKENIZER].

The small kinds need the standard library only and take the tokenizer of the directory TOKENIZER. They differ in what
attention and MLP compute: `gqa`, `mha` (as many key heads as query heads), `window` (sliding windows in half of the
layers), `moe` (a mixture of experts), `bert` (an encoder). The large kinds have the shapes of Qwen2.5, of BGE's base model and
of Qwen3-Embedding, and are written in bf16 by torch.
"""

import array
import json
import math
import random
import shutil
import sys
from pathlib import Path

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16}
BERT = {"architectures": ["BertModel"], "hidden_act": "gelu", "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512}
KINDS = {
    "gqa": ("Qwen2", {**SMALL, "num_key_value_heads": 2}),
    "mha": ("Qwen2", {**SMALL, "num_key_value_heads": 4}),
    "window": ("Qwen2", {**SMALL, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 32,
                         "max_window_layers": 2}),
    "moe": ("Qwen3Moe", {**SMALL, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 48, "norm_topk_prob": True}),
    "qwen2.5-0.5b": ("Qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                               "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2.5-1.5b": ("Qwen2", {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                               "num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2.5-7b": ("Qwen2", {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                             "num_attention_heads": 28, "num_key_value_heads": 4}),
    "bert": ("Bert", {**BERT, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}),
    "bge-base": ("Bert", {**BERT, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                          "num_attention_heads": 12}),
    "qwen3-embedding-0.6b": ("Qwen3", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128,
                                       "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True}),
}
MODEL_TYPES = {"Qwen2": "qwen2", "Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe", "Bert": "bert"}


def tensors(config):
    """Names and shapes of the checkpoint."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    if config["model_type"] == "bert":
        return bert_tensors(config, hidden, vocab, config["intermediate_size"])
    width = config["head_dim"]
    queries, keys = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [vocab, hidden]
    for layer in range(config["num_hidden_layers"]):
        own = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.o_proj": [hidden, queries]}
        projections = (("q", queries), ("k", keys), ("v", keys))
        own |= {f"self_attn.{name}_proj": [rows, hidden] for name, rows in projections}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
        if config["model_type"] == "qwen2":
            shapes |= {f"model.layers.{layer}.self_attn.{name}_proj.bias": [rows] for name, rows in projections}
            mlps, inner = ["mlp"], config["intermediate_size"]
        else:
            norms = ("q_norm", "k_norm")
            shapes |= {f"model.layers.{layer}.self_attn.{name}.weight": [width] for name in norms}
        if config["model_type"] == "qwen3":
            mlps, inner = ["mlp"], config["intermediate_size"]
        elif config["model_type"] == "qwen3_moe":
            shapes[f"model.layers.{layer}.mlp.gate.weight"] = [config["num_experts"], hidden]
            mlps = [f"mlp.experts.{expert}" for expert in range(config["num_experts"])]
            inner = config["moe_intermediate_size"]
        for mlp in mlps:
            for name, shape in (("gate", [inner, hidden]), ("up", [inner, hidden]), ("down", [hidden, inner])):
                shapes[f"model.layers.{layer}.{mlp}.{name}_proj.weight"] = shape
    return shapes


def bert_tensors(config, hidden, vocab, inner):
    shapes = {f"embeddings.{name}_embeddings.weight": [rows, hidden] for name, rows in
              (("word", vocab), ("position", config["max_position_embeddings"]), ("token_type", config["type_vocab_size"]))}
    norms = ["embeddings"]
    for layer in range(config["num_hidden_layers"]):
        own = {f"attention.self.{name}": [hidden, hidden] for name in ("query", "key", "value")}
        own |= {"attention.output.dense": [hidden, hidden], "intermediate.dense": [inner, hidden], "output.dense": [hidden, inner]}
        for name, shape in own.items():
            shapes |= {f"encoder.layer.{layer}.{name}.weight": shape, f"encoder.layer.{layer}.{name}.bias": shape[:1]}
        norms += [f"encoder.layer.{layer}.attention.output", f"encoder.layer.{layer}.output"]
    return shapes | {f"{name}.LayerNorm.{part}": [hidden] for name in norms for part in ("weight", "bias")}


def values(name, shape, large):
    """The bytes of a tensor: norms are 1, matrices keep the variance of their input."""
    norm = name.lower().endswith("norm.weight")
    scale = 0.02 if large or len(shape) == 1 else 1 / math.sqrt(shape[-1])
    count = math.prod(shape)
    if not large:
        numbers = (1.0 for _ in range(count)) if norm else (random.gauss(0, scale) for _ in range(count))
        return array.array("f", numbers).tobytes()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    numbers = torch.ones(count) if norm else scale * torch.randn(count, device=device)
    return numbers.bfloat16().cpu().view(torch.uint8).numpy().tobytes()


def encoder_tokenizer(path):
    """Puts a token before and after every text, as BERT's tokenizers do."""
    tokenizer = json.loads(path.read_text())
    special = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]")]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [special[0], {"Sequence": {"id": "A", "type_id": 0}}, special[1]],
        "pair": [special[0], {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, special[1]],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in enumerate(("[CLS]", "[SEP]"))},
    }
    path.write_text(json.dumps(tokenizer))


def main():
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    class_name, sizes = KINDS[kind]
    large = kind.startswith(("qwen", "bge"))
    config = {
        "architectures": [f"{class_name}ForCausalLM"], "model_type": MODEL_TYPES[class_name], "hidden_act": "silu",
        "vocab_size": 151936 if kind.startswith("qwen2.5") else 512, "max_position_embeddings": 32768 if large else 1024,
        "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": 2,
        "torch_dtype": "bfloat16" if large else "float32", **sizes,
    }
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    shapes = tensors(config)
    width = 2 if large else 4
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + width * math.prod(shape)
        header[name] = {"dtype": "BF16" if large else "F32", "shape": shape, "data_offsets": [begin, end]}
    random.seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 3:
        for file in Path(sys.argv[3]).glob("*.json"):
            if file.name != "config.json":
                shutil.copy(file, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if class_name == "Bert" and (folder / "tokenizer.json").exists():
        encoder_tokenizer(folder / "tokenizer.json")
    with open(folder / "model.safetensors", "wb") as file:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            file.write(values(name, shape, large))


if __name__ == "__main__":
    main()
