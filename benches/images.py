"""Images beside transformers and TRL on the CPU: preprocessing, prefill, and a GRPO step.

    benches/run.sh images [--images 64] [--repetitions 3] [--only preprocessing|prefill|grpo]

- preprocessing: pictures of 0.1 to 2 megapixels, one after the other, to the patches of Qwen2-VL
  and Qwen3-VL, beside the slow (Pillow) and the fast processor (torchvision) of transformers; from
  pixels, and from files. One thread each.
- prefill: a file with an image of 1,000 patches and a short question, to the first new token, by a
  Qwen2.5-VL and a Qwen3-VL with random weights (58M parameters, f32). Logits are compared first.
- grpo: steps of that Qwen3-VL beside TRL: 2 groups of 8, an image of 192 patches each, 32 new
  tokens.

Sides take turns; medians are compared. The first measurement of each side is a warm-up, and so is
the first step of each training run.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median

import images_made
from compare import RESULTS, ROOT, Side, machine

PARTS = ("preprocessing", "prefill", "grpo")
FAMILIES = {"Qwen2.5-VL": (700, 280), "Qwen3-VL": (800, 320)}  # sizes of images of 1,000 patches
GROUPS = 2  # as in benches/images.lua
QUESTION = "What does the picture show?"
PEER = [sys.executable, str(ROOT / "benches/images_peer.py")]


def turns(sides, question, repetitions):
    """The answers of each side, without the first."""
    answers = {name: [] for name in sides}
    for _ in range(repetitions + 1):
        for name, side in sides.items():
            answers[name].append(side.measure(json.dumps(question)))
    return {name: all[1:] for name, all in answers.items()}


def seconds(answers, field="seconds"):
    return median(answer[field] for answer in answers)


def preprocessing(args, dir):
    images_made.pictures(dir, args.images)
    sides = {"r1": Side([args.bench, str(dir)], 1)}
    for kind in ("slow", "fast"):
        sides[kind] = Side([*PEER, "preprocess", str(dir), kind], 1)
    lines = ["| preprocessing, images/s | r1 | slow processor | ratio | fast processor | ratio |", "|---|---|---|---|---|---|"]
    results = {}
    for processor in images_made.PROCESSORS:
        for what, format, decode in (("pixels", "png", False), ("PNG files", "png", True), ("JPEG files", "jpg", True)):
            name = f"{processor}, {what}"
            print(f"measuring {name}", file=sys.stderr)
            question = {"processor": processor, "format": format, "decode": decode}
            answers = results[name] = turns(sides, question, args.repetitions)
            ours, theirs = answers["r1"][0]["sum"], answers["slow"][0]["sum"]
            # The values are the same; their sum depends on the order.
            if format == "png" and abs(ours - theirs) > 1e-9 * abs(theirs):
                sys.exit(f"error: {name}: the sum of the values is {ours}, and {theirs} of the slow processor")
            rate = {side: args.images / seconds(all) for side, all in answers.items()}
            cells = " | ".join(f"{rate[side]:.1f} | **{rate['r1'] / rate[side]:.2f}x**" for side in ("slow", "fast"))
            lines.append(f"| {name} | {rate['r1']:.1f} | {cells} |")
    for side in sides.values():
        side.close()
    return results, lines


def prefill(args, dir):
    lines = ["| prefill | r1 | transformers | ratio | largest difference of logits |", "|---|---|---|---|---|"]
    results = {}
    for name, size in FAMILIES.items():
        print(f"measuring prefill of {name}", file=sys.stderr)
        model, image = made(dir, name), dir / f"{name}.png"
        images_made.photograph(*size, 5).save(image)
        sides = {"r1": Side([args.bench, str(model), "model"], args.threads),
                 "transformers": Side([*PEER, "prefill", str(model)], args.threads)}
        words = images_made.tokenizer()
        texts = ["<|im_start|>user\n<|vision_start|>", f"<|vision_end|>{QUESTION}<|im_end|>\n<|im_start|>assistant\n"]
        before, after = [words.encode(text) for text in texts]
        question = {"image": str(image), "before": before, "after": after, "check": False}
        ours, theirs = [side.measure(json.dumps(question | {"check": True})) for side in sides.values()]
        if ours["tokens"] != theirs["tokens"]:
            sys.exit(f"error: {name}: {ours['tokens']} tokens, and {theirs['tokens']} of transformers")
        scale = max(map(abs, theirs["logits"]))
        difference = max(abs(a - b) for a, b in zip(ours["logits"], theirs["logits"], strict=True)) / scale
        if difference > 1e-4:
            sys.exit(f"error: {name}: logits differ by {difference:.1e} of the largest")
        answers = turns(sides, question, 2 * args.repetitions)
        results[name] = {"difference": difference, "tokens": ours["tokens"], **answers}
        for what, field in (("to the first token", "seconds"), ("of it preprocessing", "patches")):
            one, other = (seconds(answers[side], field) for side in sides)
            of = f" | {difference:.0e}" if field == "seconds" else " | "
            lines.append(f"| {name}, {ours['tokens']} tokens: {what} | {one * 1e3:.1f} ms | {other * 1e3:.1f} ms | **{other / one:.2f}x**{of} |")
        for side in sides.values():
            side.close()
    return results, lines


def grpo(args, dir):
    model, tasks, steps = made(dir, "Qwen3-VL"), dir / "tasks.parquet", args.steps + 1
    images_made.tasks(tasks, GROUPS * steps, QUESTION)
    env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    rows = {"r1": [], "TRL": []}

    def run(command):
        done = subprocess.run(command, cwd=dir, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"error: a side ended with status {done.returncode}\n{done.stdout[-2000:]}")

    for number in range(args.rounds):
        print(f"measuring grpo, round {number + 1}", file=sys.stderr)
        run([args.binary, "run", str(ROOT / "benches/images.lua"), f"policy.model={model}", f"params.tasks={tasks}",
             f"trainer.steps={steps}", "--threads", str(args.threads), "--name", f"grpo{number}", "-q"])
        lines = [json.loads(line) for line in (dir / f"runs/grpo{number}/metrics.jsonl").read_text().splitlines()]
        rows["r1"] += [
            {"seconds": line["time/step"], "sampling": line["time/sampling"], "training": line["time/training"],
             "tokens": [line["rollout/prompt_tokens"], round(line["rollout/response_tokens"] * GROUPS * 8)]}
            for line in lines if line.get("step", 0) > 1 and "time/step" in line]
        run([*PEER, "grpo", str(model), str(tasks), str(steps), str(dir / "steps")])
        rows["TRL"] += [json.loads(line) for line in (dir / "steps").read_text().splitlines()[1:]]
    prompts = {side: {step["tokens"][0] for step in all} for side, all in rows.items()}
    if prompts["r1"] != prompts["TRL"]:
        sys.exit(f"error: tokens of prompts are {prompts}")
    lines = ["| GRPO with images | r1 | TRL | ratio |", "|---|---|---|---|"]
    for what, field in (("a step", "seconds"), ("sampling", "sampling"), ("update", "training")):
        one, other = (seconds(rows[side], field) for side in rows)
        lines.append(f"| {what} | {one:.2f} s | {other:.2f} s | **{other / one:.2f}x** |")
    return rows, lines


def made(dir, name):
    """The model `name`, made once."""
    if not (dir / name).exists():
        images_made.model(dir / name, name)
    return dir / name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the r1 binary")
    parser.add_argument("--bench", required=True, help="the binary of benches/images.rs")
    parser.add_argument("--threads", type=int, default=2, help="of prefill and grpo")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="training runs of each side of grpo")
    parser.add_argument("--steps", type=int, default=2, help="measured steps of a training run")
    parser.add_argument("--only", choices=PARTS, help="measure one part, and write no results")
    args = parser.parse_args()
    results, tables = {}, []
    with tempfile.TemporaryDirectory() as dir:
        for part, measure in zip(PARTS, (preprocessing, prefill, grpo), strict=True):
            if args.only in (None, part):
                results[part], lines = measure(args, Path(dir))
                tables.append("\n".join(lines))
                print(tables[-1] + "\n", flush=True)
    if args.only:
        return
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    peers = {name: version(name) for name in ("torch", "torchvision", "pillow", "transformers", "trl")}
    about = {"date": datetime.date.today().isoformat(), "machine": machine(), "threads": args.threads, "r1": commit, "peers": peers,
             "images": args.images, "load": os.getloadavg()[0]}
    head = (f"{about['date']}, {about['machine']}, r1 {commit}, " + ", ".join(f"{name} {number}" for name, number in peers.items())
            + f". Preprocessing of {args.images} images with one thread; prefill and GRPO with {args.threads}, in f32. Medians.")
    name = f"{about['date']}-{re.sub('[^a-z0-9]+', '-', machine().lower()).strip('-')}-images"
    (RESULTS / f"{name}.md").write_text("# Images beside transformers and TRL\n\n" + "\n\n".join([head, *tables]) + "\n")
    (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    print(f"written to benches/results/{name}.md and .json", file=sys.stderr)


if __name__ == "__main__":
    main()
