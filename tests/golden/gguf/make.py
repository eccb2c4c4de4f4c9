"""Makes the files of this folder: GGUF files of tiny models, and what transformers reads from them.

    pip install torch==2.11.0 transformers==5.24.0 gguf==0.19.0 && python make.py

The weights are random, converted as llama.cpp's convert_hf_to_gguf.py does: rows of queries and keys of Llama interleaved,
1 added to the norms of Gemma. golden.json holds for each model its config as transformers saves it, the SHA-256 of every
tensor (f32, little-endian) of the model that `from_pretrained(gguf_file=…)` returns, logits of a prompt, and ids of texts.
blocks.json holds random blocks of every type of tensors, and the SHA-256 of the numbers that `gguf.dequantize` makes of them.
"""

import hashlib
import json
import math
import tempfile
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

here = Path(__file__).parent
CORPUS = (
    "The sum of 12 and 30 is 42, and the price of 3 apples isn't 1.50 euros. It's the answer to the question that they've "
    "asked in the station: which train leaves the city at 10:45, and what does it cost? We'll see. I'd say, the other one."
)
TEXTS = [
    "The sum of 12 and 30 is 42.",
    "  two  spaces,\n\nlines\tand a tab  3.14",
    "I'LL isn't they've café 北京 🙂",
    "<|im_start|>user\nWhat is 7 * 8?<|im_end|>\n<|im_start|>assistant\n",
    "x = 10**3  # 1000",
    " leading and trailing ",
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def sha(array):
    return hashlib.sha256(np.ascontiguousarray(array, np.float32).tobytes()).hexdigest()


def blocks():
    """Random blocks; the halves are small numbers, because random bits are infinite or not a number now and then."""
    draw = np.random.default_rng(7)
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]}
    halves |= {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    cases = []
    for kind in [Type.F32, Type.F16, Type.BF16, *(Type[name] for name in halves)]:
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        count = 3 if numbers > 32 else 8
        if kind.name in halves:
            raw = draw.integers(0, 256, (count, size), dtype=np.uint8)
            for at in halves[kind.name]:
                raw[:, at : at + 2] = draw.normal(0, 0.02, (count, 1)).astype(np.float16).view(np.uint8)
        else:
            plain = draw.normal(0, 1, count).astype(np.float32)
            raw = plain.view(np.uint8) if kind == Type.F32 else plain.astype(np.float16).view(np.uint8)
            raw = raw.reshape(1, -1)
        values = gguf.dequantize(raw, kind)
        first = [float(value) for value in values.ravel()[:4]]
        cases.append({"type": int(kind), "name": kind.name, "bytes": raw.tobytes().hex(), "first": first, "sha256": sha(values)})
    (here / "blocks.json").write_text(json.dumps(cases, indent=0) + "\n")


def vocabulary(kind):
    """A byte-level BPE, or one of SentencePiece with scores, trained on `CORPUS`."""
    size = SIZES["vocab_size"]
    if kind == "gpt2":
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator([CORPUS], trainer)
        model = json.loads(tokenizer.to_str())["model"]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        tokens += [f"[PAD{index}]" for index in range(len(tokens), size)]
        types = [3 if token in SPECIAL else 5 if token.startswith("[PAD") else 1 for token in tokens]
        return {"tokens": tokens, "types": types, "merges": [" ".join(pair) for pair in model["merges"]]}
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size - 259, show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    letters = [token for token in model["vocab"] if len(token) == 1]
    merged = ["".join(pair) for pair in model["merges"]]
    heads = ["<unk>", "<s>", "</s>"]
    tokens = heads + [f"<0x{byte:02X}>" for byte in range(256)] + merged + letters
    tokens = tokens[:size] if len(tokens) >= size else tokens + [f"[PAD{index}]" for index in range(len(tokens), size)]
    types = [2, 3, 3] + [6] * 256 + [5 if token.startswith("[PAD") else 1 for token in tokens[259:]]
    scores = [0.0] * 259 + [float(259 - index) for index in range(259, size)]
    return {"tokens": tokens, "types": types, "scores": scores}


def interleave(weight, heads):
    """Rows of a head alternate between its halves, as in llama.cpp's conversion of Llama."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def tensors(config, state, family):
    for name, value in state.items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        value = value.numpy()
        stem, end = name.rsplit(".", 1)
        if name.startswith("model.layers."):
            _, _, layer, module = stem.split(".", 3)
            if "experts" in name:
                module, end = f"{module}.{end}", "weight"
            names = INNER | (GEMMA if family == "gemma3" else {})
            if module == "mlp.experts.gate_up_proj":
                for part, half in zip(["gate", "up"], np.split(value, 2, axis=1)):
                    yield f"blk.{layer}.ffn_{part}_exps.weight", half
                continue
            new = f"blk.{layer}.{names[module]}.{end}"
        else:
            new = f"{OUTER[stem]}.{end}"
        if family == "llama" and "attn_q." in new:
            value = interleave(value, config.num_attention_heads)
        if family == "llama" and "attn_k." in new:
            value = interleave(value, config.num_key_value_heads)
        if family == "gemma3" and new.endswith("norm.weight"):
            value = value + 1
        yield new, value


def write(path, family, config, state, kinds, words, pre):
    writer = gguf.GGUFWriter(path, family)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    parameters = config.rope_parameters
    writer.add_rope_freq_base(parameters.get("full_attention", parameters)["rope_theta"])
    if family == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    else:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if family == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if family == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_tokenizer_model("gpt2" if "merges" in words else "llama")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words["tokens"])
    writer.add_token_types(words["types"])
    if "merges" in words:
        writer.add_token_merges(words["merges"])
    else:
        writer.add_token_scores(words["scores"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token("merges" not in words)
    writer.add_chat_template(TEMPLATE)
    for index, (name, value) in enumerate(tensors(config, state, family)):
        # Types that fit the rows, one after the other; vectors are f32, as in llama.cpp's files.
        kind = kinds[index % len(kinds)] if value.ndim > 1 else Type.F32
        raw = gguf.quantize(value, kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def unfused(name, value):
    """Experts by the names that checkpoints have."""
    for fused, parts in [("gate_up_proj", ["gate_proj", "up_proj"]), ("down_proj", ["down_proj"])]:
        if name.endswith(f"mlp.experts.{fused}"):
            for index, expert in enumerate(value):
                for part, half in zip(parts, np.split(expert, len(parts))):
                    yield f"{name.removesuffix(fused)}{index}.{part}.weight", half
            return
    yield name, value


def main():
    blocks()
    family = {
        "llama": (LlamaConfig(**SIZES, rope_theta=500.0), "llama", "default", [Type.Q8_0, Type.Q4_1, Type.F16]),
        "llama_tied": (LlamaConfig(**SIZES, tie_word_embeddings=True), "gpt2", "llama-bpe", [Type.Q4_0, Type.F16]),
        "qwen2": (Qwen2Config(**SIZES), "gpt2", "qwen2", [Type.Q5_0, Type.BF16]),
        "qwen3": (Qwen3Config(**SIZES, tie_word_embeddings=True), "gpt2", "qwen2", [Type.Q5_1]),
        "qwen3moe": (
            Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True),
            "gpt2",
            "qwen2",
            [Type.Q8_0],
        ),
        "gemma3": (
            Gemma3TextConfig(**SIZES, sliding_window=4, query_pre_attn_scalar=16, layer_types=["sliding_attention"] * 2),
            "llama",
            "default",
            [Type.Q8_0, Type.Q4_0],
        ),
    }
    cases = []
    for name, (config, kind, pre, kinds) in family.items():
        torch.manual_seed(0)
        original = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in original.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1 if parameter.ndim == 1 else 0.2)
        words = vocabulary(kind)
        path = here / f"{name}.gguf"
        write(path, name.split("_")[0], config, original.state_dict(), kinds, words, pre)
        model = AutoModelForCausalLM.from_pretrained(here, gguf_file=path.name, config=config, dtype=torch.float32)
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        if config.tie_word_embeddings:
            state.pop("lm_head.weight")
        sums = {new: sha(part) for name, value in state.items() for new, part in unfused(name, value)}
        prompt = [5, 77, 300, 6, 42, 259, 8]
        with torch.no_grad():
            logits = model(torch.tensor([prompt])).logits[0, -1].tolist()
        tokenizer = AutoTokenizer.from_pretrained(here, gguf_file=path.name)
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
        around = tokenizer.encode(TEXTS[0])
        messages = [{"role": "user", "content": "What is 7 * 8?"}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        saved = json.loads(config.to_json_string())
        cases.append(
            {"name": name, "config": saved, "sha256": sums, "prompt": prompt, "logits": [round(value, 5) for value in logits]}
            | {"ids": ids, "around": around, "messages": messages, "rendered": rendered}
        )
    versions = {"transformers": transformers.__version__, "torch": torch.__version__, "gguf": "0.19.0"}
    golden = {"versions": versions, "texts": TEXTS, "cases": cases}
    (here / "golden.json").write_text(json.dumps(golden, indent=0, ensure_ascii=False) + "\n")


main()
