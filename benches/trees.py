#!/usr/bin/env python3
"""Trains the vault (benches/trees) with and without branches and compares accuracy per sampled token.

    python3 benches/trees.py [--r1 target/release/r1] [--steps 60] [--seeds 0,1,2] [--runs DIR] [--report-only]

Writes the block `trees` of docs/lab/learning.md. Existing runs are not repeated. Needs only a built
r1 and Python.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parent.parent
RANDOM = ["trainer.branch.roots=2"]
ENTROPY = ["trainer.branch.roots=2", "trainer.branch.at=entropy"]
# Name -> overrides. All have 8 groups of 8 per step, except the controls, which sample about as
# many tokens per step as the branches.
ARMS = {
    "GRPO": ["trainer.estimator=grpo"],
    "GRPO, 5 groups": ["trainer.estimator=grpo", "trainer.groups_per_step=5"],
    "GRPO, branches": ["trainer.estimator=grpo", *RANDOM],
    "tree, branches": ["trainer.estimator=tree", *RANDOM],
    "tree, branches at entropy": ["trainer.estimator=tree", *ENTROPY],
    "tree, local = 1": ["trainer.estimator=tree", "trainer.estimator.local=1", *RANDOM],
    "GiGPO": ["trainer.estimator=gigpo"],
    "GiGPO, 5 groups": ["trainer.estimator=gigpo", "trainer.groups_per_step=5"],
    "GiGPO, branches": ["trainer.estimator=gigpo", *RANDOM],
}
# At the learning rate of the others, plain groups diverge here too.
SLOW = ["trainer.lr=3e-4"]
LATE = {
    "GRPO": ["trainer.estimator=grpo", *SLOW],
    "GRPO, 3 groups": ["trainer.estimator=grpo", "trainer.groups_per_step=3", *SLOW],
    "GRPO, branches": ["trainer.estimator=grpo", *RANDOM, *SLOW],
    "tree, branches": ["trainer.estimator=tree", *RANDOM, *SLOW],
    "tree, branches at entropy": ["trainer.estimator=tree", *ENTROPY, *SLOW],
    "tree, 3 branches of a state, at entropy": ["trainer.estimator=tree", *ENTROPY, "trainer.branch.width=3", *SLOW],
    "tree, branches at {7}": ["trainer.estimator=tree", "trainer.branch.roots=2", "trainer.branch.at=[7]", *SLOW],
}
# Game -> title, and the model that plays it.
GAMES = {
    "whole": ("All rooms are gone through", "demos", ARMS),
    "ends": ("The first wrong door is the end", "demos", ARMS),
    "late": ("Only the last door is unsure", "late_demos", LATE),
}


def model(r1, runs, demos):
    out = runs / f"model-{demos}"
    if not out.exists():
        call([r1, "sft", ROOT / f"benches/trees/{demos}.lua", "--runs-dir", runs, "--name", demos, "--out", out, "-q"])
    return out


def call(command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")


def train(r1, runs, game, player, name, settings, steps, seed):
    """Trains a run if it does not exist; returns its directory."""
    slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
    run = runs / f"{game}-{slug}-{seed}"
    if not (run / "done").exists():
        subprocess.run(["rm", "-rf", str(run)], check=True)
        print(f"{game}: {name}, seed {seed}", flush=True)
        call([r1, "run", ROOT / f"benches/trees/{game}.lua", "--runs-dir", runs, "--name", run.name, "-q", f"seed={seed}",
              f"trainer.steps={steps}", f"policy.model={player}", *settings])
        (run / "done").touch()
    return run


def read(run):
    """[(sampled tokens, evaluation accuracy)], and the mean fraction of tokens shared with roots."""
    tokens, points, shared, sampled = 0, [], [], []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        row = row.get("metrics", row)
        if "time/sampling" in row:
            own = row["throughput/tokens_per_s"] * row["time/sampling"]
            tokens += own
            sampled.append(own)
            shared.append(row.get("rollout/shared_token_share", 0))
        if "eval/accuracy" in row:
            points.append((tokens, row["eval/accuracy"]))
    return points, sum(shared) / len(shared), sum(sampled) / len(sampled)


def at(points, budget):
    """Evaluation accuracy after this number of sampled tokens, by linear interpolation."""
    for (x, y), (x2, y2) in zip(points, points[1:]):
        if x <= budget <= x2 and x2 > x:
            return y + (y2 - y) * (budget - x) / (x2 - x)
    return points[-1][1]


def reached(points, goal):
    """Tokens until the evaluation accuracy first reached `goal`, by linear interpolation."""
    for (x, y), (x2, y2) in zip(points, points[1:]):
        if y < goal <= y2:
            return x + (x2 - x) * (goal - y) / (y2 - y)
    return None


def table(found, budgets, goal):
    lines = ["| | " + " | ".join(f"open after {b // 1000}k tokens" for b in budgets)
             + f" | thousand tokens until {goal:g} | sampled a step | shared |",
             "|---|" + "---|" * (len(budgets) + 3)]
    for name, runs in found.items():
        cells = [", ".join(f"{at(points, b):.2f}" for points, _, _ in runs) for b in budgets]
        ends = [reached(points, goal) for points, _, _ in runs]
        cells.append(", ".join("never" if end is None else f"{end / 1000:.0f}" for end in ends))
        cells.append(f"{sum(r[2] for r in runs) / len(runs):.0f}")
        cells.append(f"{sum(r[1] for r in runs) / len(runs):.0%}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--r1", type=Path, default=pages.binary())
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--runs", type=Path, default=pages.runs("trees"))
    parser.add_argument("--report-only", action="store_true", help="use existing runs only")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    text = []
    for game, (title, demos, arms) in GAMES.items():
        found = {}
        player = None if args.report_only else model(args.r1, args.runs, demos)
        for seed in args.seeds.split(","):
            for name, settings in arms.items():
                slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
                if args.report_only and not (args.runs / f"{game}-{slug}-{seed}" / "done").exists():
                    continue
                run = train(args.r1, args.runs, game, player, name, settings, args.steps, seed)
                found.setdefault(name, []).append(read(run))
        if not found:
            continue
        shortest = min(points[-1][0] for runs in found.values() for points, _, _ in runs)
        budgets = [int(shortest * share // 1000 * 1000) for share in (1 / 4, 1 / 2, 1)]
        ordered = {name: found[name] for name in arms if name in found}
        text += [f"### {title}", "", *table(ordered, budgets, 0.8), ""]
    about = f"{pages.machine('')}: `python3 benches/trees.py --steps {args.steps} --seeds {args.seeds}`."
    pages.replace(ROOT / "docs/lab/learning.md", "trees", [*text, *pages.lines(about)])


if __name__ == "__main__":
    main()
