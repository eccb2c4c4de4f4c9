"""The memory of a GPU of 80 GB that training takes, as `r1 plan` predicts it: models of the shapes of Qwen2.5 in bf16, on
one to eight GPUs, with what the processes can divide among them. For docs/guide/scale.md.

GRPO with 64 trajectories at once, a context of 4,096 tokens and gradient checkpointing. The key-value cache takes what the
other parts leave, so a configuration fits if at least one slot of the cache is left.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = {
    "0.5B": (896, 4864, 24, 14, 2, 151936, True),
    "1.5B": (1536, 8960, 28, 12, 2, 151936, True),
    "3B": (2048, 11008, 36, 16, 2, 151936, True),
    "7B": (3584, 18944, 28, 28, 4, 152064, False),
    "14B": (5120, 13824, 48, 40, 8, 152064, False),
    "32B": (5120, 27648, 64, 40, 8, 152064, False),
}
CASES = {
    "LoRA, 1 GPU": (1, ["policy.lora.rank=16"]),
    "1 GPU": (1, []),
    "2 GPUs, stage 3": (2, ["trainer.zero_stage=3"]),
    "8 GPUs, stage 1": (8, ["trainer.zero_stage=1"]),
    "8 GPUs, stage 2": (8, ["trainer.zero_stage=2"]),
    "8 GPUs, stage 3": (8, ["trainer.zero_stage=3"]),
}
SETTINGS = ["policy.dtype=bf16", "policy.max_context=4096", "trainer.gradient_checkpointing=true", "cold_start=false",
            "rollout.concurrency=64"]


def write_config(folder, shape):
    hidden, inner, layers, heads, kv_heads, vocab, tied = shape
    config = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))


def plan(binary, model, world, settings):
    command = [binary, "plan", "scripts/retool.lua", f"policy.model={model}", *SETTINGS, *settings, "--device", "a100-80",
               "--world", str(world), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[0])


def cell(planned):
    gigabytes = lambda parts: sum(part["bytes"] for part in parts if part["what"] != "key-value cache") / 1e9
    held = gigabytes(planned["held"])
    update, sampling = held + gigabytes(planned["learning"]), held + gigabytes(planned["sampling"])
    caches = [part for part in planned["held"] + planned["sampling"] if part["what"] == "key-value cache"]
    slots = int(caches[0]["why"].split()[0]) if caches else 0
    return f"{update:.0f} / {sampling:.0f}, {slots}" if planned["fits"] and slots else f"no: {update:.0f} / {sampling:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the r1 binary")
    args = parser.parse_args()
    print("| model | " + " | ".join(CASES) + " |\n" + "|---" * (len(CASES) + 1) + "|")
    with tempfile.TemporaryDirectory() as directory:
        for name, shape in MODELS.items():
            folder = Path(directory) / name
            write_config(folder, shape)
            cells = [cell(plan(args.binary, folder, world, settings)) for world, settings in CASES.values()]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
