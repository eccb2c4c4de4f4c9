"""Checkpoints between transformers, PEFT and r1, both ways; prints their tables of docs/lab/parity.md.

    exchange.sh        (as `just parity-checkpoints` does; it installs transformers and PEFT)

Every family, with tied and with an own head, in f32, bf16 and f16, as one file and as shards with an index: transformers
saves it, r1 reads it and saves it again (crates/model/src/model/tests/exchange.rs), transformers reads that. Names, types and every
bit of every tensor must be the same, and the logits of both in f32 within 1e-4. Adapters of PEFT go the same way.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import peft
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from make import FAMILIES, ROPES, configured, ids

here = Path(__file__).parent
root = here.parents[2]
LOGITS = 1e-4
KINDS = [torch.float32, torch.bfloat16, torch.float16]
# Bytes of a shard: several of them for models of this size.
SHARD = 16_000
INDEX = "model.safetensors.index.json"


def short(kind):
    return str(kind).removeprefix("torch.")


def randomise(model, offset):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(offset if name.endswith("norm.weight") else 0.0, 0.2)


def make(directory):
    """Writes all checkpoints; their names."""
    for number, (family, (kind, own)) in enumerate(FAMILIES.items()):
        for tied in (False, True):
            config = configured(kind, family, ROPES["default"], own | {"tie_word_embeddings": tied})
            for dtype in KINDS:
                for shard in (None, SHARD):
                    name = f"{family}-{'tied' if tied else 'own'}-{short(dtype)}-{'shards' if shard else 'one'}"
                    torch.manual_seed(number)
                    model = AutoModelForCausalLM.from_config(config).eval()
                    randomise(model, 0.0 if family == "gemma3" else 1.0)
                    base = directory / name
                    model.to(dtype).save_pretrained(base, max_shard_size=shard or "5GB")
                    assert (base / INDEX).exists() == bool(shard), name
                    case = {"kind": short(dtype), "shard": shard, "row": ids(name, 24, config.vocab_size)}
                    if dtype == torch.float32 and shard:
                        case["new"] = ["q_proj", "o_proj"]
                        adapt(base, tied)
                    (base / "exchange.json").write_text(json.dumps(case))


def adapt(base, stabilised):
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    fields = {"r": 3, "lora_alpha": 5, "use_rslora": stabilised, "target_modules": targets}
    config = peft.LoraConfig(task_type="CAUSAL_LM", **fields)
    model = peft.get_peft_model(load(base), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(base / "adapter")


def load(base, dtype=torch.float32):
    model, loading = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, output_loading_info=True)
    # Nothing is missing, unexpected or misshapen.
    assert not any(loading.values()), f"{base}: {loading}"
    return model.eval()


def tensors(base):
    """What the files hold, by name."""
    held = {}
    for path in sorted(base.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            held |= {name: file.get_tensor(name) for name in file.keys()}
    return held


def differing(a, b):
    """Tensors that are not the same to the last bit, or that only one side has."""
    same = {name for name in a.keys() & b.keys() if a[name].dtype == b[name].dtype and torch.equal(a[name], b[name])}
    return len(a.keys() | b.keys()) - len(same)


@torch.no_grad()
def logits(model, row):
    return model(torch.tensor([row])).logits[0]


def compare(source, target):
    """Counts and worst differences of one checkpoint."""
    case = json.loads((source / "exchange.json").read_text())
    found = load_file(target / "found")
    if case["shard"]:
        index = json.loads((target / INDEX).read_text())
        sizes = [path.stat().st_size for path in target.glob("model-*.safetensors")]
        assert len(sizes) > 1 and index["metadata"]["total_size"] > SHARD, target
    else:
        assert (target / "model.safetensors").exists() and not (target / INDEX).exists(), target
    before, after = load(source, "auto"), load(target, "auto")
    assert before.dtype == after.dtype == getattr(torch, case["kind"]), f"{target}: {after.dtype}"
    result = {
        "tensors": len(tensors(source)),
        "files": differing(tensors(source), tensors(target)),
        "models": differing(before.state_dict(), after.state_dict()),
        "logits": (found["whole"] - logits(load(source), case["row"])).abs().max().item(),
    }
    if "new" not in case:
        return result, None
    model = peft.PeftModel.from_pretrained(load(source), source / "adapter").eval()
    adapted = logits(model, case["row"])
    again = logits(peft.PeftModel.from_pretrained(load(target), target / "adapter").eval(), case["row"])
    merged = logits(load(target / "merged"), case["row"])
    new = peft.PeftModel.from_pretrained(load(source), target / "new").eval()
    own, theirs = (load_file(base / "adapter/adapter_model.safetensors") for base in (source, target))
    parts = [name for name, _ in new.named_parameters() if "lora_" in name]
    assert len(parts) == 2 * 2 * new.config.num_hidden_layers, parts
    return result, {
        "tensors": len(own),
        "files": differing(own, theirs),
        "logits": (found["adapted"] - adapted).abs().max().item(),
        "read again": (again - adapted).abs().max().item(),
        "merged": (merged - adapted).abs().max().item(),
        "new": (logits(new, case["row"]) - logits(load(source), case["row"])).abs().max().item(),
    }


def total(results):
    """Counts added up, differences at their worst."""
    return {key: (sum if isinstance(results[0][key], int) else max)(result[key] for result in results) for key in results[0]}


def number(value):
    """As the rest of the page has it: 1.2e-6."""
    if isinstance(value, int):
        return str(value)
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def table(first, rows):
    keys = list(next(iter(rows.values())))
    lines = [f"| {first} | {' | '.join(keys)} |", "|---|" + "---|" * len(keys)]
    rows = rows | {"**all**": total(list(rows.values()))}
    for name, result in rows.items():
        shown = [number(result[key]) for key in keys]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        source, target = Path(temporary) / "from", Path(temporary) / "to"
        make(source)
        command = ["cargo", "test", "--release", "-p", "r1-model", "--lib", "--"]
        command += ["--ignored", "--exact", "model::tests::exchange::exchange"]
        subprocess.run(command, cwd=root, env=os.environ | {"R1_EXCHANGE": temporary}, check=True, stdout=sys.stderr)
        wholes, adapters = {}, {}
        for base in sorted(source.iterdir()):
            family = base.name.split("-")[0]
            whole, adapter = compare(base, target / base.name)
            wholes.setdefault(family, []).append({"checkpoints": 1} | whole)
            if adapter:
                adapters.setdefault(family, []).append({"adapters": 1} | adapter)
    wholes, adapters = ({family: total(result) for family, result in all.items()} for all in (wholes, adapters))
    print(f"\n{table('family', wholes)}\n\n{table('family', adapters)}\n")
    wrong = [
        f"{family}: {key} {result[key]}"
        for results_of in (wholes, adapters)
        for family, result in results_of.items()
        for key in result
        if key in ("files", "models") and result[key] or isinstance(result[key], float) and result[key] > LOGITS
    ]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
