"""How much slower r1 is on a machine with another process, beside one free core.

    python3 benches/busy.py --binary target/release/r1 [--model DIR] [--repetitions N]

Each command runs in four ways: with one thread on an idle machine (one free core), with the default
number of threads on an idle machine, and with another process that keeps one of the cores busy.
`before` is the wait of OpenMP without r1's setting (GOMP_SPINCOUNT=300000, libgomp's own default);
`now` is r1 as it starts. Prints the median seconds and the ratios to one free core as a table.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# libgomp's own default, without OMP_WAIT_POLICY.
BEFORE = {"GOMP_SPINCOUNT": "300000"}
COMPETITOR = "while True: pass"


def commands(model, steps):
    """Name, arguments, and the metrics that are read from the run; the whole command without any."""
    run = ["run", str(HERE / "busy.lua"), f"policy.model={model}", "--quiet"]
    question = "Ana has 12 boxes with 34 pens in each. How many pens in all?"
    return [
        ("infer, one reply", ["infer", "--model", model, "--max-new-tokens", "64", "-p", question], None),
        ("run, 8 at once", run, ["time/sampling", "time/training"]),
        ("run, 32 at once", [*run, "trainer.groups_per_step=4"], ["time/sampling", "time/training"]),
        (f"demo, {steps} steps", ["run", str(HERE.parent / "scripts/retool.lua"), f"trainer.steps={steps}", "eval.every=0", "--quiet"], None),
    ]


def once(binary, arguments, metrics, setting):
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")}
    environment.update(setting)
    with tempfile.TemporaryDirectory() as directory:
        start = time.monotonic()
        done = subprocess.run([binary, *arguments], env=environment, cwd=directory, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=1800)
        seconds = time.monotonic() - start
        if done.returncode != 0:
            sys.exit(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
        if metrics is None:
            return {"seconds": seconds}
        steps = [json.loads(line) for line in (Path(directory) / "runs/busy/metrics.jsonl").read_text().splitlines()]
        steps = [step for step in steps if metrics[0] in step]
        return {name: statistics.median(step[name] for step in steps) for name in metrics}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", default="r1-nano")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="training steps of the demo")
    parser.add_argument("--only", default="", help="commands whose name contains this")
    args = parser.parse_args()
    binary = str(Path(args.binary).resolve())
    model = str(Path(args.model).resolve()) if Path(args.model).exists() else args.model
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("one core: there is nothing to compare")
    ways = [("one free core", {"OMP_NUM_THREADS": "1"}, False), ("idle, before", BEFORE, False), ("idle, now", {}, False),
            ("busy, before", BEFORE, True), ("busy, now", {}, True)]
    print("| command | " + " | ".join(name for name, _, _ in ways) + " | busy / one core, before | now |")
    print("|---" * (len(ways) + 3) + "|")
    for name, arguments, metrics in commands(model, args.steps):
        if args.only not in name:
            continue
        measured = {way: [] for way, _, _ in ways}
        for _ in range(args.repetitions):
            for way, setting, busy in ways:
                competitor = None
                if busy:
                    competitor = subprocess.Popen([sys.executable, "-c", COMPETITOR])
                    os.sched_setaffinity(competitor.pid, {cores[-1]})
                try:
                    measured[way].append(once(binary, arguments, metrics, setting))
                finally:
                    if competitor:
                        competitor.kill()
                        competitor.wait()
        for metric in measured[ways[0][0]][0]:
            medians = [statistics.median(one[metric] for one in measured[way]) for way, _, _ in ways]
            label = name if metric == "seconds" else f"{name}: {metric.removeprefix('time/')}"
            cells = [f"{seconds:.2f}" for seconds in medians]
            print(f"| {label} | " + " | ".join(cells) + f" | {medians[3] / medians[0]:.1f} | {medians[4] / medians[0]:.1f} |", flush=True)


main()
