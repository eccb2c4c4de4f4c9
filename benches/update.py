"""Policy updates of a model of a real shape on the CPU: time and memory, compared with transformers and PyTorch's AdamW.

Both sides load the same random weights of Qwen2.5-0.5B's shape in f32 and make the same update:
PPO-clip over the sampled tokens of the same rows, global-norm clipping, AdamW (fused on both
sides). The peer does not pad either: its rows have one length. Each measurement is a separate
process, so that its peak memory is known; smallest times are compared. Three questions: the update
itself; the memory of 152k logits a token; rows merged over the steps of a trajectory.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version

from compare import RESULTS, ROOT, machine
from decode import CACHE, SHAPE, make

GIB = 1 << 30
NANO = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 8192, "tie_word_embeddings": True}


def made(name, shape):
    """The directory of a random model of another shape."""
    dir = CACHE / name
    if not (dir / "model.safetensors").exists():
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(0)
        Qwen2ForCausalLM(Qwen2Config(**shape)).float().save_pretrained(dir)
    return dir


def memory(name):
    text = open("/proc/self/status").read()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) * 1024


def peer(question):
    """transformers and torch.optim.AdamW: the whole batch at once, with full logits."""
    import torch
    import transformers

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.Qwen2ForCausalLM.from_pretrained(question["dir"], dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    if question.get("checkpointing"):
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
    (prompt, reply), = {tuple(turns) for turns in question["trajectories"]}
    count = len(question["trajectories"])
    ids = torch.randint(0, min(30000, model.config.vocab_size), (count, prompt + reply))
    advantages = torch.tensor([1.0 if n % 2 == 0 else -1.0 for n in range(count)])[:, None]
    old = torch.full((count, reply), -12.0)
    rows = max(1, question["tokens_per_batch"] // (prompt + reply))
    seconds = []
    for _ in range(question["repetitions"] + 1):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for part in range(0, count, rows):
            own = slice(part, part + rows)
            logits = model(ids[own], logits_to_keep=reply + 1).logits[:, :-1]
            logp = logits.log_softmax(-1).gather(-1, ids[own, prompt:, None])[..., 0]
            ratio = (logp - old[own]).exp()
            loss = -torch.minimum(ratio * advantages[own], ratio.clamp(0.8, 1.2) * advantages[own]).sum() / (count * reply)
            loss.backward()
            del logits, logp, ratio, loss
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
        optimizer.zero_grad(set_to_none=True)
        held = memory("VmRSS")
    return {"seconds": seconds[1:], "tokens": count * (prompt + reply), "peak": memory("VmHWM"), "held": held}


def measure(command, question, threads):
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    out = subprocess.run([*command, json.dumps(question)], env=env, stdout=subprocess.PIPE, text=True)
    if out.returncode != 0:
        print(f"left out: {command[0]} stopped with exit status {out.returncode}", file=sys.stderr)
        return None
    return json.loads(out.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="the binary of benches/update.rs")
    parser.add_argument("--binary", help="the r1 binary (not used here)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return print(json.dumps(peer(json.loads(args.peer))))
    sides = {"r1": [args.bench], "transformers": [sys.executable, __file__, "--peer"]}

    def both(question):
        question = {"repetitions": args.repetitions, **question}
        return {name: measure(command, question, args.threads) for name, command in sides.items()}

    def r1(question):
        return measure(sides["r1"], {"repetitions": args.repetitions, **question}, args.threads)

    half = str(make("f32"))
    two = str(made("two-layers-152k-f32", SHAPE | {"num_hidden_layers": 2}))
    small = str(made("small-f32", NANO))
    lines = []

    def table(*heads):
        lines.extend(["", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)])

    def row(*cells):
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        print(lines[-1], flush=True)

    results = {}
    lines.append("## An update at Qwen2.5-0.5B's shape: 4 rows of 64 + 192 tokens, one micro-batch")
    table("", "seconds", "tokens/s", "most memory", "above what is held")
    for checkpointing in (False, True):
        found = both({"dir": half, "trajectories": [[64, 192]] * 4, "tokens_per_batch": 1024, "checkpointing": checkpointing})
        results[f"update, checkpointing {checkpointing}"] = found
        for name, side in found.items():
            if side:
                best = min(side["seconds"])
                row(name + (", checkpointing" if checkpointing else ""), f"{best:.2f}", f"{side['tokens'] / best:.0f}",
                    f"{side['peak'] / GIB:.1f} GiB", f"{(side['peak'] - side['held']) / GIB:.1f} GiB")
        if all(found.values()):
            ratio = min(found["transformers"]["seconds"]) / min(found["r1"]["seconds"])
            row("**ratio**", f"**{ratio:.2f}x**", "", "", "")

    lines.append("\n## Memory of 152k logits a token: two layers of that shape, 8 rows of 16 + 240 tokens at once")
    table("", "seconds", "most memory", "above what is held")
    question = {"dir": two, "trajectories": [[16, 240]] * 8, "tokens_per_batch": 2048}
    found = both(question) | {"r1, whole logits": r1(question | {"whole_logits": True})}
    results["logits"] = found
    for name, side in found.items():
        if side:
            row(name, f"{min(side['seconds']):.2f}", f"{side['peak'] / GIB:.2f} GiB", f"{(side['peak'] - side['held']) / GIB:.2f} GiB")

    lines.append("\n## Rows merged over the steps of a trajectory: 8 append-only trajectories of steps of 64 + 64 tokens, "
                 "a model of 8 layers and 512 wide")
    table("steps", "merged", "tokens", "separate rows", "tokens", "separate, nothing shared", "tokens")
    for steps in range(1, 6):
        question = {"dir": small, "trajectories": [[64, 64] * steps] * 8, "tokens_per_batch": 4096}
        ways = {"merged": question, "separate": question | {"separate": True},
                "alone": question | {"separate": True, "tokens_per_batch": 1}}
        found = {name: r1(way) for name, way in ways.items()}
        results[f"{steps} steps"] = found
        if all(found.values()):
            row(steps, *(cell for side in found.values() for cell in (f"{min(side['seconds']):.2f} s", side["tokens"])))

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    about = {"date": datetime.date.today().isoformat(), "machine": machine(), "threads": args.threads, "r1": commit.strip(),
             "peers": {name: version(name) for name in ("torch", "transformers")}, "load": os.getloadavg()[0]}
    head = (f"{about['date']}, {about['machine']}, {args.threads} threads, f32, r1 {about['r1']}, torch "
            f"{about['peers']['torch']}, transformers {about['peers']['transformers']}, smallest of {args.repetitions}.")
    text = "# Policy updates on the CPU\n\n" + head + "\n\n" + "\n".join(lines) + "\n"
    name = f"{about['date']}-{re.sub('[^a-z0-9]+', '-', about['machine'].lower()).strip('-')}-update"
    (RESULTS / f"{name}.md").write_text(text)
    (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    print(f"written to benches/results/{name}.md and .json")


if __name__ == "__main__":
    main()
