#!/usr/bin/env python3
"""Trains scripts/retool.lua with several algorithms and seeds, and plots their learning curves.

    python3 benches/curves.py [--steps 40] [--seeds 0,1,2] [--runs DIR] [--draw-only]

Writes docs/lab/learning.svg (mean over seeds as a line, smallest to largest as a band) and the block
`curves` of docs/lab/learning.md (the table next to it). Existing runs are not repeated. Needs only a built r1 and
Python.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parent.parent
# Name -> overrides. All runs have 128 trajectories per step and the same step size.
ALGORITHMS = {
    "GRPO": ["trainer.algorithm=grpo"],
    "PPO (step GAE)": ["trainer.algorithm=ppo", "trainer.group_size=1", "trainer.groups_per_step=128",
                       "trainer.critic.lr=1e-4"],
    "REINFORCE++": ["trainer.algorithm=reinforce_pp", "trainer.group_size=1", "trainer.groups_per_step=128"],
    "RLOO": ["trainer.algorithm=rloo"],
    "GSPO": ["trainer.algorithm=gspo", "trainer.clip=null"],
    "PSPO": ["trainer.algorithm=pspo", "trainer.clip=null", "trainer.group_size=1", "trainer.groups_per_step=128",
             "trainer.critic.lr=1e-4"],
    "GiGPO": ["trainer.algorithm=gigpo"],
}
PANELS = [
    ("rollout/accuracy", "accuracy"),
    ("rollout/tool_calls", "tool calls a trajectory"),
    ("rollout/response_tokens", "sampled tokens a trajectory"),
]
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#9c6b4e"]


def train(runs, name, settings, steps, seed):
    """Trains a run if it does not exist; returns its directory."""
    slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
    run = runs / f"{slug}-{seed}"
    if (run / "done").exists():
        return run
    subprocess.run(["rm", "-rf", str(run)], check=True)
    command = [str(pages.binary()), "run", str(ROOT / "scripts/retool.lua"), "--runs-dir", str(runs),
               "--name", run.name, f"seed={seed}", f"trainer.steps={steps}", "checkpoint.every=0", *settings]
    print(f"{name}, seed {seed}", flush=True)
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    (run / "done").touch()
    return run


def read(run):
    """Metric -> values by step, and the last evaluation."""
    series, held_out = {}, {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, value in row.get("metrics", row).items():
            if name.startswith("eval/"):
                held_out.setdefault(name, []).append(value)
            elif value is not None and "rollout/accuracy" in row.get("metrics", row):
                series.setdefault(name, []).append(value)
    return series, held_out


def path(points):
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def panel(left, title, curves, steps):
    """One chart: an SVG group."""
    width, height, top = 300, 220, 46
    values = [v for _, seeds in curves for seed in seeds for v in seed]
    step_size = next(s for s in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if max(values) / s <= 6)
    low, high = 0, step_size * -(-max(values) // step_size)
    x = lambda step: left + step / max(steps - 1, 1) * width
    y = lambda value: top + height - (value - low) / (high - low) * height
    out = [f'<text x="{left}" y="{top - 14}" font-weight="600">{title}</text>']
    for i in range(round(high / step_size) + 1):
        value = step_size * i
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#888" stroke-opacity="0.25"/>')
        out.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for step in (1, (steps + 1) // 2, steps):
        out.append(f'<text x="{x(step - 1):.1f}" y="{top + height + 16}" text-anchor="middle">{step}</text>')
    for colour, (_, seeds) in zip(COLOURS, curves):
        columns = list(zip(*seeds))
        band = [(x(i), y(max(c))) for i, c in enumerate(columns)]
        band += [(x(i), y(min(c))) for i, c in reversed(list(enumerate(columns)))]
        out.append(f'<path d="{path(band)}Z" fill="{colour}" opacity="0.12"/>')
        mean = [(x(i), y(sum(c) / len(c))) for i, c in enumerate(columns)]
        out.append(f'<path d="{path(mean)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    return "\n".join(out)


def draw(found, steps, file):
    """SVG of all panels with a legend below."""
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" width="1140" height="330" viewBox="0 0 1140 330" '
             'font-family="system-ui, sans-serif" font-size="12" fill="#777">']
    for i, (metric, title) in enumerate(PANELS):
        curves = [(name, [series[metric] for series, _ in seeds]) for name, seeds in found.items()]
        parts.append(panel(60 + 375 * i, title, curves, steps))
    for i, (colour, name) in enumerate(zip(COLOURS, found)):
        left = 60 + 155 * i
        parts.append(f'<rect x="{left}" y="304" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 20}" y="310">{name}</text>')
    pages.write(file, "\n".join(parts) + "\n</svg>\n")


def table(found):
    """The numbers of the plot."""
    lines = [
        "| algorithm | held out before | held out after | steps to 0.9 in training | tool calls at the end | sampled tokens at the end |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in found.items():
        def cell(values, form="{:.3f}"):
            return ", ".join("never" if v is None else form.format(v) for v in values)
        first = [next((i + 1 for i, v in enumerate(s["rollout/accuracy"]) if v >= 0.9), None) for s, _ in runs]
        last = lambda metric: [sum(s[metric][-5:]) / 5 for s, _ in runs]
        lines.append(
            f"| {name} | {cell([h['eval/accuracy'][0] for _, h in runs])} | {cell([h['eval/accuracy'][-1] for _, h in runs])} "
            f"| {cell(first, '{:d}')} | {cell(last('rollout/tool_calls'), '{:.2f}')} "
            f"| {cell(last('rollout/response_tokens'), '{:.1f}')} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--runs", type=Path, default=pages.runs("curves"))
    parser.add_argument("--draw-only", action="store_true", help="use existing runs only")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, settings in ALGORITHMS.items():
        for seed in args.seeds.split(","):
            slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
            if args.draw_only and not (args.runs / f"{slug}-{seed}" / "done").exists():
                continue
            run = train(args.runs, name, settings, args.steps, seed)
            found.setdefault(name, []).append(read(run))
    draw(found, args.steps, ROOT / "docs/lab/learning.svg")
    about = f"{pages.machine('')}: `python3 benches/curves.py --steps {args.steps} --seeds {args.seeds}`."
    pages.replace(ROOT / "docs/lab/learning.md", "curves", [*table(found), "", *pages.lines(about)])


if __name__ == "__main__":
    main()
