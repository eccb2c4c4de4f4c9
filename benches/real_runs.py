#!/usr/bin/env python3
"""Writes the part NAME of docs/lab/real-model.md, and its picture, from finished runs of a real model.

    python3 benches/real_runs.py NAME RUN ... [--sft RUN] [--tasks N]

A RUN is the directory of `r1 run`, one for each seed; --sft is the supervised run that the seeds
begin with, if it is no part of them. The evaluations are those that the runs themselves recorded;
--tasks is the number of held-out tasks, if there are fewer than `eval.limit`.
"""

import argparse
import json
import math
from pathlib import Path

import pages
import recipes

ROOT = Path(__file__).resolve().parent.parent
PANELS = [
    ("rollout/accuracy", "success"),
    ("rollout/tool_calls", "tool calls a trajectory"),
    ("rollout/response_tokens", "sampled tokens a trajectory"),
]


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def wilson(share, count):
    """The 95 % interval of a share of `count` (Wilson 1927)."""
    z = 1.959964
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return f"{share:.3f} ({middle - half:.3f}–{middle + half:.3f})"


def hours(lines):
    return sum(line.get("time/step", 0) + line.get("time/evaluation", 0) for line in lines) / 3600


def mean(lines, metric):
    values = [line[metric] for line in lines if metric in line]
    return sum(values) / len(values) if values else float("nan")


def row(folder, sft, tasks):
    """The cells of a run."""
    config, lines = json.loads((folder / "config.json").read_text()), rows(folder)
    tests = [line for line in lines if "eval/accuracy" in line]
    steps = [line for line in lines if "rollout/accuracy" in line]
    tasks = tasks or config["settings"]["eval"]["limit"]
    cold = rows(sft) if sft else rows(folder / "sft") if (folder / "sft").exists() else []
    ends = [f"{mean(part, 'rollout/tool_calls'):.2f}" for part in (steps[:5], steps[-5:])]
    tokens = [f"{mean(part, 'rollout/response_tokens'):.0f}" for part in (steps[:5], steps[-5:])]
    return [
        str(config["seed"]), *(wilson(test["eval/accuracy"], tasks) for test in (tests[0], tests[-1])), str(len(steps)),
        ", ".join(ends), ", ".join(tokens), f"{hours(cold):.1f}, {hours(lines):.1f}",
        f"{max(line.get('memory/peak', 0) for line in [*lines, *cold]) / 1024:.1f}",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sft", type=Path)
    parser.add_argument("--tasks", type=int)
    options = parser.parse_args()
    lines = [
        "| seed | before RL | after RL | steps | tool calls, first and last five steps | sampled tokens, the same | hours of SFT, of RL | peak memory, GiB |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(row(run, options.sft, options.tasks))} |" for run in options.runs),
    ]
    recipes.PANELS[:] = PANELS
    picture = f"real-{options.name}.svg"
    recipes.draw([(options.name, [recipes.series(run) for run in options.runs])], ROOT / "docs/lab" / picture)
    about = pages.about(json.loads((options.runs[-1] / "config.json").read_text()), threads="")
    command = " ".join(f"runs/{run.name}" for run in options.runs)
    sft = f" --sft runs/{options.sft.name}" if options.sft else ""
    tasks = f" --tasks {options.tasks}" if options.tasks else ""
    sentence = f"{about}: `python3 benches/real_runs.py {options.name} {command}{sft}{tasks}`."
    pages.replace(ROOT / "docs/lab/real-model.md", options.name,
                  [*lines, "", *pages.lines(sentence), "", f"![success, tool calls and sampled tokens against steps]({picture})"])


if __name__ == "__main__":
    main()
