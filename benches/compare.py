"""Measures r1 and other systems in one run and prints ratios; `just bench` runs it through run.sh.

Each side is a process that waits for the name of a measurement. Both load the same weights, do the
same work (reply lengths are drawn here and set for both), and use the same number of threads. They take turns,
r1, peer, r1, peer, ...; medians are compared, and smallest and largest are shown.
"""

import argparse
import datetime
import json
import math
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches/results"
# name: (description, target ratio)
COMPARED = {
    "sample_equal": ("sampling, 64 at once, 64-token prompts, 64 new tokens each", 3),
    "sample_ragged": ("sampling, 64 at once, 64-token prompts, ragged replies", 5),
    "grpo_equal": ("GRPO step, 8 groups of 8, 64-token prompts, 64 new tokens each", 3),
    "grpo_ragged": ("GRPO step, 8 groups of 8, 2 to 4 turns, ragged replies and observations", 5),
    "grpo_steps": ("GRPO step, 8 groups of 8, 5 turns, growing context, ragged replies and observations", 5),
}


def workload():
    """Rows of prompt and turns. Ragged lengths are log-normal with mean 40, cut at 128; observations have 8 to 32 ids."""
    rng = random.Random(0)

    def ids(n):
        return [rng.randrange(1, 256) for _ in range(n)]

    def ragged():
        return min(128, max(1, round(rng.lognormvariate(math.log(40) - 0.32, 0.8))))

    def turns(*replies):
        last = len(replies) - 1
        return [{"reply": n, "observation": ids(rng.randint(8, 32)) if i < last else []} for i, n in enumerate(replies)]

    def rows(groups, size, replies):
        prompts = [ids(64) for _ in range(groups)]
        return [{"prompt": prompt, "turns": turns(*replies())} for prompt in prompts for _ in range(size)]

    return {
        "sample_equal": rows(64, 1, lambda: [64]),
        "sample_ragged": rows(64, 1, lambda: [ragged()]),
        "grpo_equal": rows(8, 8, lambda: [64]),
        "grpo_ragged": rows(8, 8, lambda: [ragged() for _ in range(rng.randint(2, 4))]),
        "grpo_steps": rows(8, 8, lambda: [ragged() for _ in range(5)]),
    }


class Side:
    """A process that runs requested measurements."""

    def __init__(self, command, threads):
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.name = command[0]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: {self.name} stopped with exit status {self.process.wait()}")
        return json.loads(line)

    def measure(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def summary(samples):
    seconds = [sample["seconds"] for sample in samples]
    result = {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
    result |= {key: samples[-1][key] for key in ("tokens", "way", "tried", "prompt") if key in samples[-1]}
    if "parts" in samples[-1]:
        parts = samples[-1]["parts"]
        result["parts"] = {key: statistics.median(sample["parts"][key] for sample in samples) for key in parts}
    return result


def in_turns(name, sides, repetitions):
    """The first measurement of each side is a warm-up."""
    samples = [[] for _ in sides]
    for _ in range(repetitions + 1):
        for side, own in zip(sides, samples, strict=True):
            own.append(side.measure(name))
    return [summary(own[1:]) for own in samples]


def start_up(binary, repetitions):
    def run():
        begin = time.perf_counter()
        subprocess.run([binary, "--version"], check=True, stdout=subprocess.DEVNULL)
        return {"seconds": time.perf_counter() - begin}

    run()
    return summary([run() for _ in range(repetitions)])


def first_step(binary, dir):
    """From launch of the demo until its first optimiser step is in metrics.jsonl."""
    begin = time.perf_counter()
    command = [binary, "run", ROOT / "scripts/retool.lua", "trainer.steps=1"]
    run = subprocess.Popen(command, cwd=dir, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while run.poll() is None:
        logs = (dir / "runs").glob("*/metrics.jsonl")
        if any('"policy/lr"' in log.read_text() for log in logs):
            seconds = time.perf_counter() - begin
            run.terminate()
            run.wait()
            return seconds
        time.sleep(0.01)
    sys.exit(f"error: the demo ended without a step\n{run.stderr.read()}")


def measure(args, dir):
    names = [name for name in [*COMPARED, "env_step", "trajectory", "start_up"] if args.only in name]
    shutil.copytree(args.model, dir / "model")
    for name, rows in workload().items():
        (dir / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = {}
    r1 = Side([args.bench, str(dir)], args.threads)
    peer = None
    for name in names:
        print(f"measuring {name}", file=sys.stderr)
        if name in COMPARED:
            peer = peer or Side([sys.executable, str(ROOT / "benches/peers.py"), str(dir)], args.threads)
            ours, theirs = in_turns(name, [r1, peer], args.repetitions)
            results[name] = {"r1": ours, "peer": theirs, "ratio": theirs["median"] / ours["median"]}
        elif name == "start_up":
            results[name] = {"r1": start_up(args.binary, args.repetitions) | {"first_step": first_step(args.binary, dir)}}
        else:
            results[name] = {"r1": in_turns(name, [r1], args.repetitions)[0]}
    for side in filter(None, [r1, peer]):
        side.close()
    return results


def table(results):
    def time_of(side):
        if "tokens" in side:
            return f"{side['median']:.3f} s ({side['min']:.3f} to {side['max']:.3f}), {side['tokens'] / side['median']:,.0f} tokens/s"
        return f"{side['median'] * 1e6:.1f} us ({side['min'] * 1e6:.1f} to {side['max'] * 1e6:.1f})"

    lines = ["| measured | r1 | peer | ratio | target |", "|---|---|---|---|---|"]
    for name, result in results.items():
        r1 = result["r1"]
        if name in COMPARED:
            what, target = COMPARED[name]
            lines.append(f"| {what} | {time_of(r1)} | {result['peer']['way']}: {time_of(result['peer'])} "
                         f"| **{result['ratio']:.1f}x** | {target}x |")
            if name.startswith("grpo"):
                own, theirs = r1["parts"]["update"], result["peer"]["parts"]["update"]
                lines.append(f"| the same: the update alone, its trajectories given | {own:.3f} s, {r1['tokens'] / own:,.0f} tokens/s "
                             f"| {theirs:.3f} s, {r1['tokens'] / theirs:,.0f} tokens/s | **{theirs / own:.1f}x** | 3x |")
            if name == "grpo_steps":
                prompt = r1["prompt"]
                lines.append(f"| the same: prompt tokens computed, of those that are new, of those in all prompts "
                             f"| {prompt['computed']:,} of {prompt['new']:,} of {prompt['shown']:,} | | | |")
        elif name == "env_step":
            lines.append(f"| host overhead of an env step: Lua in and out | {time_of(r1)} | | | 10 us |")
            lines.append(f"| the same, reading the observation | {r1['parts']['observe'] * 1e6:.1f} us | | | |")
        elif name == "trajectory":
            lines.append(f"| a step through rollout, template and tokenizer, without a model | {time_of(r1)} | | | |")
        elif name == "start_up":
            lines.append(f"| `r1 --version` | {r1['median']:.2f} s ({r1['min']:.2f} to {r1['max']:.2f}) | | | 0.3 s |")
            lines.append(f"| launch of the demo to its first optimiser step | {r1['first_step']:.2f} s | | | 3 s |")
    return "\n".join(lines)


def machine():
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    return model.group(1) if model else platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the r1 binary")
    parser.add_argument("--bench", required=True, help="the binary of benches/r1.rs")
    parser.add_argument("--model", type=Path, default=ROOT / "models/r1-nano", help="model of both sides")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--only", default="", help="run only measurements with this in their name; writes no results")
    args = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as dir:
        results = measure(args, Path(dir))
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    about = {
        "date": datetime.date.today().isoformat(), "machine": machine(), "cores": os.cpu_count(),
        "threads": args.threads, "repetitions": args.repetitions, "r1": commit.strip(),
        "peers": {name: version(name) for name in ("torch", "transformers", "trl")},
        "load": os.getloadavg()[0], "seconds": round(time.perf_counter() - begin),
    }
    head = (f"{about['date']}, {about['machine']}, {about['cores']} cores, {args.threads} threads, r1 {about['r1']}, "
            + ", ".join(f"{name} {number}" for name, number in about["peers"].items())
            + f". Medians of {args.repetitions} (smallest to largest), sides taking turns, {about['seconds']} s in all.")
    text = f"{head}\n\n{table(results)}\n"
    print(text)
    if not args.only:
        name = f"{about['date']}-{re.sub('[^a-z0-9]+', '-', about['machine'].lower()).strip('-')}"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text(f"# Benchmarks\n\n{text}")
        (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
        print(f"written to benches/results/{name}.md and .json")


if __name__ == "__main__":
    main()
