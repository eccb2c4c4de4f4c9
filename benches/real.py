"""GRPO and supervised training of a real model on the CPU, r1 beside TRL.

    benches/run.sh real --model DIR [--steps 30] [--only grpo]

DIR is a model in Hugging Face layout with a chat template. Both sides load it in f32 and see the
same prompts, rewards, batch, longest reply, loss and optimiser. Measurements:

- grpo_sum: 8 groups of 8, at most 48 new tokens, sums of two numbers of two digits; mean reward of
  each step. r1 leaves out groups whose rewards are all equal, TRL computes them.
- grpo_spread: the same with rewards that differ in every group, so that both train on all of them.
- sft: 16 conversations a step, of different lengths.

Sampling is measured by decode.py, which takes a model too.

Each side is a process of its own; they run one after the other, and their memory is the largest
resident size of the process.
"""

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median

from compare import RESULTS, ROOT, machine

GROUP, NEW, BATCH = 8, 48, 16
MEASURED = ("grpo_sum", "grpo_spread", "sft")
WORDS = "the of and to in is was he for it with as his on be at by had not are but from or have an they".split()


def tasks(count):
    rng = random.Random(0)
    for _ in range(count):
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        yield {"prompt": f"What is {a} + {b}? Answer with the number.", "answer": str(a + b)}


def conversations(count):
    """Replies of 8 to 256 words, log-normal around 60."""
    rng = random.Random(0)
    for _ in range(count):
        size = min(256, max(8, round(rng.lognormvariate(4.1, 0.7))))
        text = " ".join(rng.choice(WORDS) for _ in range(size))
        yield {"messages": [{"role": "user", "content": "Write a text."}, {"role": "assistant", "content": text}]}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def usage(pid, output):
    """Seconds of processor time and largest resident size (MiB) of a child that has ended."""
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"error: a side ended with status {status}\n{output.read_text()[-2000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def run(command, dir, threads):
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    begin = time.perf_counter()
    with (dir / "output").open("w") as output:
        child = subprocess.Popen(command, cwd=dir, env=env, stdout=output, stderr=subprocess.STDOUT)
        processor, memory = usage(child.pid, dir / "output")
    return {"seconds": time.perf_counter() - begin, "processor": processor, "memory": memory}


def ours(args, name, dir, data, steps):
    kind, *reward = name.split("_")
    command = [args.binary, "sft" if kind == "sft" else "run", ROOT / "benches/real.lua", f"policy.model={args.model}",
               f"data.train={data}", f"trainer.steps={steps}",
               *([] if kind == "sft" else [f"trainer.groups_per_step={args.groups}"]), "--threads", str(args.threads), "--name", name,
               f"params.sft={'true' if kind == 'sft' else 'false'}", *(f"params.reward={value}" for value in reward)]
    result = run(command, dir, args.threads)
    lines = [json.loads(line) for line in (dir / f"runs/{name}/metrics.jsonl").read_text().splitlines()]
    result["steps"] = [
        {"seconds": line["time/step"], "sampling": line.get("time/sampling"), "training": line.get("time/training"),
         "reward": line.get("rollout/accuracy", line.get("correct")), "loss": line.get("sft/loss")}
        for line in lines if "time/step" in line]
    return result


def theirs(args, name, dir, data, steps):
    command = [sys.executable, __file__, "--peer", name, "--model", args.model, "--data", data, "--steps", str(steps),
               "--groups", str(args.groups)]
    result = run(command, dir, args.threads)
    result["steps"] = [json.loads(line) for line in (dir / f"{name}.steps").read_text().splitlines()]
    return result


def peer(args):
    """TRL's side: a line of JSON for each step in NAME.steps."""
    import datasets
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.logging.set_verbosity_error()
    options = json.loads((args.model / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(args.model / "tokenizer.json"), eos_token=options["eos_token"],
        pad_token=options.get("pad_token") or options["eos_token"], chat_template=options["chat_template"])
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa")
    rows = [json.loads(line) for line in args.data.read_text().splitlines()]
    output = open(f"{args.peer}.steps", "w", buffering=1)
    common = {
        "output_dir": "trl", "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": [],
        "save_strategy": "no", "logging_strategy": "steps", "logging_steps": 1, "disable_tqdm": True,
        "dataloader_pin_memory": False, "lr_scheduler_type": "constant", "max_steps": args.steps, "shuffle_dataset": False,
        "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 0,
    }

    class Steps(transformers.TrainerCallback):
        begin, sampling, reward, last = time.perf_counter(), None, None, None

        def on_train_begin(self, *_, **__):
            self.begin = time.perf_counter()

        def on_step_end(self, *_, **__):
            seconds = time.perf_counter() - self.begin
            training = None if self.sampling is None else seconds - self.sampling
            self.last = {"seconds": seconds, "sampling": self.sampling, "training": training, "reward": self.reward}

        def on_log(self, arguments, state, control, logs=None, **_):
            if self.last:
                output.write(json.dumps(self.last | {"loss": (logs or {}).get("loss")}) + "\n")
                self.last = None
            self.begin = time.perf_counter()

    steps = Steps()
    if args.peer == "sft":
        from trl import SFTConfig, SFTTrainer

        config = SFTConfig(**common, per_device_train_batch_size=BATCH, learning_rate=1e-6, max_length=2048,
                           assistant_only_loss=False, packing=False)
        split = [{"prompt": row["messages"][:1], "completion": row["messages"][1:]} for row in rows]
        SFTTrainer(model=model, args=config, train_dataset=datasets.Dataset.from_list(split), processing_class=tokenizer,
                   callbacks=[steps]).train()
        return
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions, answer, **_):
        texts = [completion[0]["content"] for completion in completions]
        correct = [float(numbers(text)[-1:] == [wanted]) for text, wanted in zip(texts, answer, strict=True)]
        steps.reward = mean(correct)
        return correct if args.peer == "grpo_sum" else [float(len(text.encode()) % 7) for text in texts]

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            begin = time.perf_counter()
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                steps.sampling = time.perf_counter() - begin

    config = GRPOConfig(**common, per_device_train_batch_size=args.groups * GROUP, num_generations=GROUP, max_completion_length=NEW,
                        temperature=1.0, top_p=1.0, top_k=0, beta=0.0, learning_rate=1e-5, loss_type="grpo", epsilon=0.2)
    prompts = [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in rows]
    Trainer(model=model, reward_funcs=reward, args=config, processing_class=tokenizer, callbacks=[steps],
            train_dataset=datasets.Dataset.from_list(prompts)).train()


def numbers(text):
    import re

    return re.findall(r"[0-9]+", text)


def middle(result, field):
    """Median over the steps after the first, which is a warm-up."""
    values = [step[field] for step in result["steps"][1:] if step.get(field) is not None]
    return median(values) if values else None


def table(results):
    lines = ["| measured | r1 | TRL | ratio |", "|---|---|---|---|"]

    def row(what, own, other, digits=2, unit=" s"):
        if own is not None and other is not None:
            lines.append(f"| {what} | {own:.{digits}f}{unit} | {other:.{digits}f}{unit} | **{other / own:.2f}x** |")

    for name, sides in results.items():
        own, other = sides["r1"], sides["TRL"]
        row(f"{name}: a step, median", middle(own, "seconds"), middle(other, "seconds"))
        row(f"{name}: sampling", middle(own, "sampling"), middle(other, "sampling"))
        row(f"{name}: update", middle(own, "training"), middle(other, "training"))
        row(f"{name}: largest resident memory", own["memory"], other["memory"], 0, " MiB")
        if name == "grpo_sum":
            third = max(1, len(own["steps"]) // 3)
            for what, part in (("first", slice(0, third)), ("last", slice(-third, None))):
                values = [mean(step["reward"] for step in side["steps"][part]) for side in (own, other)]
                lines.append(f"| {name}: mean reward of the {what} {third} steps | {values[0]:.2f} | {values[1]:.2f} | |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, help="the r1 binary")
    parser.add_argument("--bench", help="a bench binary (not used here)")
    parser.add_argument("--model", type=Path, required=True, help="a model in Hugging Face layout")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--groups", type=int, default=8, help="groups of 8 in a step")
    parser.add_argument("--only", default="", help="run only measurements with this in their name; writes no results")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.model, args.binary = args.model.resolve(), args.binary and args.binary.resolve()
    if args.peer:
        return peer(args)
    if not any(args.only in name for name in MEASURED):
        parser.error(f"--only: no measurement has {args.only!r} in its name; they are {', '.join(MEASURED)}")
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        dir = Path(temporary)
        data = {
            "grpo": write(dir / "tasks.jsonl", tasks(args.steps * args.groups)),
            "sft": write(dir / "conversations.jsonl", conversations(args.steps * BATCH)),
        }
        for name in MEASURED:
            if args.only not in name:
                continue
            # Only the curve of rewards needs all steps.
            steps = args.steps if name == "grpo_sum" else min(args.steps, 6)
            rows = data[name.split("_")[0]]
            results[name] = {"r1": ours(args, name, dir, rows, steps), "TRL": theirs(args, name, dir, rows, steps)}
            print(table({name: results[name]}), file=sys.stderr)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    peers = {name: version(name) for name in ("torch", "transformers", "trl")}
    about = {"date": datetime.date.today().isoformat(), "machine": machine(), "threads": args.threads, "steps": args.steps, "groups": args.groups,
             "model": args.model.name, "r1": commit.strip(), "peers": peers, "load": os.getloadavg()[0]}
    head = (f"{about['date']}, {about['machine']}, {args.threads} threads, r1 {about['r1']}, "
            + ", ".join(f"{name} {number}" for name, number in peers.items())
            + f". {args.model.name} in f32. Medians over steps, without the first.")
    text = f"{head}\n\n{table(results)}\n"
    print(text)
    if not args.only:
        name = f"{about['date']}-{machine_name()}-real"
        (RESULTS / f"{name}.md").write_text(f"# A real model beside TRL\n\n{text}")
        (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
        print(f"written to benches/results/{name}.md and .json")


def machine_name():
    import re

    return re.sub("[^a-z0-9]+", "-", machine().lower()).strip("-")


if __name__ == "__main__":
    main()
