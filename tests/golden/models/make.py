"""Makes the numbers of this folder: what transformers computes with small models of every family and rope variant.

    pip install torch==2.11.0 transformers==5.17.0 peft==0.21.2 && python make.py && python make.py lora

No weights are stored: `weights` below computes them from their names, and so does the test that reads this folder.
golden.json holds, for each case, the config as transformers saves it, the names and shapes of the checkpoint, prompts,
64 tokens of greedy decoding with a cache, and the loss with the norm of its gradient for every tensor.
golden.safetensors holds logits at a few positions. The models are trained for 64 tokens; rows and greedy decoding go
beyond. `python make.py lora` makes golden_lora.*: adapters as PEFT saves them, their logits and gradients.
`python make.py reward` makes golden_reward.json: scores of sequence classifiers, of rows alone and with padding at the end.
`python make.py encoder` makes golden_encoder.json: pooled hidden states of BERT encoders, of rows alone and of padded batches.
`python make.py cross` makes golden_cross.json: logits of BERT cross-encoders, of pairs alone and of padded batches, and the ids
of pairs of texts that transformers' tokenizer cuts.
`python make.py large` makes golden_large.*: the shape of Qwen2.5-0.5B, three rows of logits (every 64th token's); it takes
6 GB of memory.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

here = Path(__file__).parent
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
THETA = 500.0
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 48,
    },
}
YARN = {**ROPES["yarn"], "beta_fast": 8.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": True}
GEMMA = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
GEMMA |= {"query_pre_attn_scalar": 24, "head_dim": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
# Their norms are stored as weights minus 1.
ZERO_CENTRED = ["gemma3_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"]
SMOL = {"no_rope_layers": [1, 0, 1]}
FAMILIES = {
    "qwen2": (Qwen2Config, {"head_dim": 8}),
    "qwen3": (Qwen3Config, {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3_moe": (Qwen3MoeConfig, MOE),
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": 16}),
    "gemma3": (Gemma3TextConfig, GEMMA),
    "smollm3": (SmolLM3Config, SMOL),
}
# What else a family's config can ask for.
MORE = {
    "qwen2 tied": ("qwen2", "default", {"tie_word_embeddings": True}),
    "qwen2 window": ("qwen2", "default", WINDOW),
    "qwen3 untied biases window": ("qwen3", "default", {"tie_word_embeddings": False, "attention_bias": True, **WINDOW}),
    "qwen3_moe dense layers": (
        "qwen3_moe",
        "default",
        {"mlp_only_layers": [0], "decoder_sparse_step": 1, "norm_topk_prob": False, "num_experts_per_tok": 3},
    ),
    "qwen3_moe window": ("qwen3_moe", "default", {"use_sliding_window": True, "sliding_window": 16}),
    "llama biases": ("llama", "default", {"attention_bias": True, "mlp_bias": True}),
    "llama tied": ("llama", "llama3", {"tie_word_embeddings": True}),
    "llama yarn options": ("llama", YARN, {}),
    "mistral no window": ("mistral", "default", {"sliding_window": None}),
    "smollm3 window biases": (
        "smollm3",
        "default",
        {"use_sliding_window": True, "sliding_window": 16, "attention_bias": True, "mlp_bias": True},
    ),
}


def uniform(name, count):
    """`count` numbers in [-1, 1): splitmix64 from the FNV-1a hash of the name on, 24 bits each."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    out = np.empty(count, dtype=np.float64)
    for start in range(0, count, 1 << 22):
        x = np.arange(start + 1, min(start + (1 << 22), count) + 1, dtype=np.uint64)
        x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(state)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        out[start : start + len(x)] = (x >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return out


def weights(name, shape, offset, deviation=None):
    """A tensor of a checkpoint, from its name; norms around `offset`. Matrices have the standard deviation, where it is given."""
    values = uniform(name, math.prod(shape))
    if len(shape) == 1:
        values = values * 0.25 + (offset if name.endswith("norm.weight") else 0.0)
    elif deviation:
        values = values * (deviation * math.sqrt(3))
    else:
        values = values * (0.4 if "embed" in name else 2 / math.sqrt(shape[1]))
    return torch.from_numpy(values.astype(np.float32)).view(shape)


def ids(name, count, vocab):
    return [int((value + 1) / 2 * vocab) for value in uniform(name, count)]


def fill(config, directory, deviation=None):
    """A checkpoint as transformers saves it, with the weights above; its names and shapes."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model = model.to_empty(device="cpu")
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    offset = 0.0 if config.model_type in ZERO_CENTRED else 1.0
    shapes = {}
    for path in directory.glob("*.safetensors"):
        tensors = load_file(path)
        # A tied head was made without its tie.
        kept = [name for name in tensors if not (config.tie_word_embeddings and name == "lm_head.weight")]
        shapes |= {name: list(tensors[name].shape) for name in kept}
        filled = {name: weights(name, shape, offset, deviation) for name, shape in shapes.items()}
        save_file(filled, path, {"format": "pt"})
    return dict(sorted(shapes.items()))


def load(directory):
    """Fresh for every measurement: "dynamic" rotary embeddings remember the longest sequence."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def case(name, config, lengths=(33, 90), positions=((0, 20, 32), (0, 40, 63, 64, 89)), new_tokens=64):
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        shapes = fill(config, directory)
        rows = [ids(f"{name} row {row}", length, config.vocab_size) for row, length in enumerate(lengths)]
        logits, losses, norms = [], [], {}
        for row, at in zip(rows, positions):
            model = load(directory)
            own = model(torch.tensor([row])).logits[0]
            logits.append(own[list(at)].detach())
            loss = torch.nn.functional.cross_entropy(own[:-1], torch.tensor(row[1:]))
            loss.backward()
            losses.append(loss.item())
            gradients = {}
            for key, parameter in model.named_parameters():
                if key not in shapes and key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                    # One tensor for all experts here, one each in the checkpoint.
                    for index, own in enumerate(parameter.grad):
                        prefix = f"{key.rsplit('.', 1)[0]}.{index}."
                        if key.endswith("down_proj"):
                            gradients[prefix + "down_proj.weight"] = own
                        else:
                            gate, up = own.chunk(2)
                            gradients |= {prefix + "gate_proj.weight": gate, prefix + "up_proj.weight": up}
                else:
                    gradients[key] = parameter.grad
            for key, gradient in gradients.items():
                norms.setdefault(key, []).append(gradient.double().norm().item())
        for attempt in range(100):
            prompt = ids(f"{name} prompt {attempt}", 20, config.vocab_size)
            out = load(directory).generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, 20, dtype=torch.long),
                max_new_tokens=new_tokens,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
                pad_token_id=0,
            )
            best = torch.stack(out.scores)[:, 0].topk(2).values
            margin = (best[:, 0] - best[:, 1]).min().item()
            greedy = out.sequences[0, 20:].tolist()
            # No close calls, and not a repetition (tied models like to repeat themselves).
            if margin > 1e-3 and len(set(greedy)) > 3:
                break
        else:
            raise SystemExit(f"{name}: no prompt without close calls")
        record = {
            "name": name,
            "config": json.loads((directory / "config.json").read_text()),
            "checkpoint": shapes,
            "rows": rows,
            "positions": [list(at) for at in positions],
            "losses": losses,
            "gradient_norms": norms,
            "prompt": prompt,
            "greedy": greedy,
        }
    print(f"{name}: margin {margin:.4f}, logits up to {torch.cat(logits).abs().max():.2f}, losses {losses}")
    return record, torch.cat(logits)


def make(stem, cases, record):
    records, tensors = zip(*[record(name, config) for name, config in cases])
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(json.dumps(record) for record in records)
    (here / f"{stem}.json").write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n')
    save_file({own["name"]: tensor.contiguous() for own, tensor in zip(records, tensors)}, here / f"{stem}.safetensors")


def small():
    for family, (kind, own) in FAMILIES.items():
        for rope, scaling in ROPES.items():
            yield f"{family} {rope}", configured(kind, family, scaling, own)
    for name, (family, rope, more) in MORE.items():
        kind, own = FAMILIES[family]
        yield name, configured(kind, family, rope if isinstance(rope, dict) else ROPES[rope], own | more)


def configured(kind, family, scaling, fields):
    rope = {**scaling, "rope_theta": THETA}
    if family == "gemma3":
        rope = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
    return kind(**(SIZES | {"rope_parameters": rope, "rms_norm_eps": 1e-5} | fields))


def large(name, config, deviation):
    with tempfile.TemporaryDirectory() as temporary:
        fill(config, Path(temporary), deviation)
        row = ids(f"{name} row", 40, config.vocab_size)
        kept = list(range(0, config.vocab_size, 64))
        model = load(Path(temporary))
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0][[0, 20, 39]][:, kept]
        for attempt in range(20):
            prompt = ids(f"{name} prompt {attempt}", 20, config.vocab_size)
            out = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, 20, dtype=torch.long),
                max_new_tokens=64,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
                pad_token_id=0,
            )
            best = torch.stack(out.scores)[:, 0].topk(2).values
            margin = (best[:, 0] - best[:, 1]).min().item()
            greedy = out.sequences[0, 20:].tolist()
            if margin > 1e-3 and len(set(greedy)) > 3:
                break
        else:
            raise SystemExit(f"{name}: no prompt without close calls")
        print(f"{name}: margin {margin:.4f}, {len(set(greedy))} tokens, logits up to {logits.abs().max():.2f}")
        config = json.loads((Path(temporary) / "config.json").read_text())
    record = {"name": name, "config": config, "deviation": deviation, "rows": [row], "positions": [[0, 20, 39]]}
    return record | {"ids": kept, "prompt": prompt, "greedy": greedy}, logits


def lora(name, config, adapter, length=30):
    from peft import PeftModel, get_peft_model

    with tempfile.TemporaryDirectory() as temporary:
        base, own = Path(temporary) / "base", Path(temporary) / "adapter"
        fill(config, base)
        get_peft_model(load(base), adapter).save_pretrained(own)
        tensors = load_file(own / "adapter_model.safetensors")
        shapes = {name: list(tensor.shape) for name, tensor in sorted(tensors.items())}
        save_file({key: weights(key, shape, 0) for key, shape in shapes.items()}, own / "adapter_model.safetensors")
        row = ids(f"{name} row", length, config.vocab_size)
        model = PeftModel.from_pretrained(load(base), own, is_trainable=True)
        logits = model(torch.tensor([row])).logits[0]
        torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(row[1:])).backward()
        norms = {
            key.replace(".default", ""): parameter.grad.double().norm().item()
            for key, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        merged = model.merge_and_unload()(torch.tensor([row])).logits[0]
        record = {
            "name": name,
            "config": json.loads((base / "config.json").read_text()),
            "adapter_config": json.loads((own / "adapter_config.json").read_text()),
            "adapter": shapes,
            "rows": [row],
            "positions": [list(range(length))],
            "gradient_norms": norms,
        }
    print(f"{name}: merging changes logits by {(merged - logits).abs().max():.1e}")
    return record, logits.detach()


def adapters():
    from peft import LoraConfig

    everything = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for name, fields in {
        "llama default": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        "qwen3 yarn": {"r": 3, "lora_alpha": 5, "use_rslora": True, "target_modules": everything},
    }.items():
        config = dict(small())[name]
        yield f"lora {name}", (config, LoraConfig(task_type="CAUSAL_LM", **fields))


def reward(name, config):
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(directory)
        path = directory / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
        offset = 0.0 if config.model_type in ZERO_CENTRED else 1.0
        save_file({name: weights(name, shape, offset) for name, shape in shapes.items()}, path, {"format": "pt"})
        model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
        # Without the id of padding, which is 0 and may be inside a text.
        rows = [[max(1, token) for token in ids(f"{name} row {row}", length, config.vocab_size)] for row, length in enumerate([1, 17, 60])]
        rows.append([*rows[1], 0, 0])
        rows.append([*rows[1][:5], 0, *rows[1][5:]])
        with torch.no_grad():
            scores = [model(torch.tensor([row])).logits[0].tolist() for row in rows]
        record = {
            "name": name,
            "config": json.loads((directory / "config.json").read_text()),
            "checkpoint": dict(sorted(shapes.items())),
            "rows": rows,
            "scores": scores,
        }
    print(f"{name}: {scores}")
    return record


def rewards():
    cases = dict(small())
    for name, labels in [("qwen2 default", 1), ("llama llama3", 1), ("qwen3 yarn", 3), ("gemma3 linear", 1), ("mistral default", 2)]:
        config = cases[name]
        config.num_labels = labels
        config.pad_token_id = 0
        yield f"reward {name}", config


def encoder(name, config, architecture):
    """Means and first vectors of the last hidden states, not normalised."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        architecture(config).save_pretrained(directory)
        path = directory / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
        # In lower case, so that LayerNorm.weight is known as the weight of a norm.
        save_file({name: weights(name.lower(), shape, 1.0) for name, shape in shapes.items()}, path, {"format": "pt"})
        model = BertModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        lengths = [1, 17, 40, 3]
        rows = [ids(f"{name} row {row}", length, config.vocab_size) for row, length in enumerate(lengths)]
        with torch.no_grad():
            alone = [model(torch.tensor([row])).last_hidden_state[0] for row in rows]
            longest = max(lengths)
            padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            together = model(padded, attention_mask=mask).last_hidden_state
        apart = max((one - other[: len(one)]).abs().max().item() for one, other in zip(alone, together))
        assert apart < 1e-5, apart
        record = {
            "name": name,
            "config": json.loads((directory / "config.json").read_text()),
            "checkpoint": dict(sorted(shapes.items())),
            "rows": rows,
            "mean": [hidden.mean(0).tolist() for hidden in alone],
            "cls": [hidden[0].tolist() for hidden in alone],
        }
    print(f"{name}: rows alone and padded differ by {apart:.1e}")
    return record


def encoders():
    sizes = {"vocab_size": 96, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 40, "type_vocab_size": 2}
    yield "encoder bert", BertConfig(**sizes), BertModel
    yield "encoder masked language model", BertConfig(**sizes, hidden_act="relu", layer_norm_eps=1e-3), BertForMaskedLM
    yield "encoder gelu_new", BertConfig(**sizes, hidden_act="gelu_new"), BertModel


def cross_encoder(name, config):
    """Logits of pairs: a row has the lengths of both texts, which are [CLS] query [SEP] and passage [SEP]."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        BertForSequenceClassification(config).save_pretrained(directory)
        path = directory / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(path).items()}
        save_file({name: weights(name.lower(), shape, 1.0) for name, shape in shapes.items()}, path, {"format": "pt"})
        model = BertForSequenceClassification.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        lengths = [(3, 2), (5, 14), (17, 23), (4, 30), (20, 3)]
        rows = [ids(f"{name} row {row}", sum(both), config.vocab_size) for row, both in enumerate(lengths)]
        types = [[0] * query + [1] * passage for query, passage in lengths]
        with torch.no_grad():
            alone = [
                model(torch.tensor([row]), token_type_ids=torch.tensor([kinds])).logits[0, 0].item()
                for row, kinds in zip(rows, types)
            ]
            one_type = [model(torch.tensor([row])).logits[0, 0].item() for row in rows]
            longest = max(map(len, rows))
            padded = [torch.tensor([row + [0] * (longest - len(row)) for row in all_rows]) for all_rows in (rows, types)]
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            together = model(padded[0], token_type_ids=padded[1], attention_mask=mask).logits[:, 0].tolist()
        apart = max(abs(one - other) for one, other in zip(alone, together))
        assert apart < 1e-5, apart
        # The types of tokens matter.
        assert min(abs(one - other) for one, other in zip(alone, one_type)) > 1e-3, (alone, one_type)
        record = {
            "name": name,
            "config": json.loads((directory / "config.json").read_text()),
            "checkpoint": dict(sorted(shapes.items())),
            "rows": rows,
            "types": types,
            "scores": alone,
        }
    print(f"{name}: {alone}; pairs alone and padded differ by {apart:.1e}")
    return record


def cross_encoders():
    sizes = {"vocab_size": 96, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 40, "type_vocab_size": 2, "num_labels": 1}
    yield "cross-encoder bert", BertConfig(**sizes)
    yield "cross-encoder gelu_new", BertConfig(**sizes, hidden_act="gelu_new", layer_norm_eps=1e-3)


def pairs():
    """Ids and types of pairs of texts, cut to several lengths by transformers (longest first)."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *[f"w{number}" for number in range(40)]]
    with tempfile.TemporaryDirectory() as temporary:
        vocabulary = {word: number for number, word in enumerate(words)}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        path = Path(temporary) / "tokenizer.json"
        inner.save(str(path))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
        text = path.read_text()
    cases = []
    for first, second in [(2, 3), (2, 30), (30, 2), (20, 20), (7, 9), (0, 12)]:
        both = [" ".join(f"w{number}" for number in range(count)) for count in (first, second)]
        for most in [8, 13, 21, 64]:
            row = tokenizer(*both, truncation=True, max_length=most, return_token_type_ids=True)
            cases.append({"texts": both, "most": most, "ids": row["input_ids"], "types": row["token_type_ids"]})
    return {"tokenizer": json.loads(text), "cases": cases}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if sys.argv[1:] == ["large"]:
        shape = {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
        shape |= {"num_attention_heads": 14, "num_key_value_heads": 2, "rope_parameters": {"rope_theta": 1e6}}
        config = Qwen2Config(**shape, tie_word_embeddings=True)
        # As transformers initialises it; and with weights several times as large, so that logits
        # reach the size of trained models' logits.
        both = [("Qwen2.5-0.5B", (config, config.initializer_range)), ("Qwen2.5-0.5B, large logits", (config, None))]
        make("golden_large", both, lambda name, both: large(name, *both))
    elif sys.argv[1:] == ["reward"]:
        records = [reward(name, config) for name, config in rewards()]
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        lines = ",\n".join(json.dumps(record) for record in records)
        (here / "golden_reward.json").write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n')
    elif sys.argv[1:] == ["cross"]:
        records = [cross_encoder(*case) for case in cross_encoders()]
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        lines = ",\n".join(json.dumps(record) for record in records)
        (here / "golden_cross.json").write_text(
            f'{{"versions": {json.dumps(versions)}, "pairs": {json.dumps(pairs())}, "cases": [\n{lines}\n]}}\n'
        )
    elif sys.argv[1:] == ["encoder"]:
        records = [encoder(*case) for case in encoders()]
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        lines = ",\n".join(json.dumps(record) for record in records)
        (here / "golden_encoder.json").write_text(f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n')
    elif sys.argv[1:] == ["lora"]:
        make("golden_lora", adapters(), lambda name, both: lora(name, *both))
    else:
        make("golden", small(), case)
