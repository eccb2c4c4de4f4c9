#!/usr/bin/env python3
"""Trains every template of `r1 new` with several seeds and tabulates accuracy and time.

    python3 benches/templates.py [--r1 target/release/r1] [--seeds 0,1,2] [--jobs 1] [--only env,game]

Writes the block `templates` of docs/lab/learning.md. Seconds are those of the whole command, on one thread, evaluations
before and after included. Needs only a built r1 and Python.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ["tool", "env", "game", "search", "code"]


def train(r1, folder, template, seed):
    """Held-out accuracy before and after, training steps and seconds of one run."""
    command = [str(r1), "run", f"{template}.lua", "--threads", "1", "--name", f"{template}-{seed}", f"seed={seed}"]
    started = time.monotonic()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - started
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    rows = [json.loads(line) for line in (folder / f"runs/{template}-{seed}/metrics.jsonl").read_text().splitlines()]
    held_out = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    found = {"before": held_out[0], "after": held_out[-1], "steps": rows[-1]["step"], "seconds": seconds}
    print(template, seed, found, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--r1", type=Path, default=pages.binary())
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent runs")
    parser.add_argument("--only", default=",".join(TEMPLATES), help="templates to train; the page is not changed")
    options = parser.parse_args()
    r1, seeds = options.r1.resolve(), [int(seed) for seed in options.seeds.split(",")]
    templates = options.only.split(",")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        for template in templates:
            subprocess.run([str(r1), "new", template, "--template", template], cwd=folder, check=True, capture_output=True)
        runs = {(template, seed): pool.submit(train, r1, folder, template, seed) for template in templates for seed in seeds}
        runs = {key: run.result() for key, run in runs.items()}
    if templates != TEMPLATES:
        return
    lines = [
        "| template | steps | held out before | held out after | seconds |",
        "|---|---|---|---|---|",
    ]
    for template in templates:
        of = [runs[template, seed] for seed in seeds]
        cell = lambda field, form: ", ".join(form.format(run[field]) for run in of)
        lines.append(
            f"| {template} | {of[0]['steps']} | {cell('before', '{:.2f}')} | {cell('after', '{:.2f}')} | {cell('seconds', '{:.0f}')} |"
        )
    about = f"{pages.machine()}: `python3 benches/templates.py --seeds {options.seeds}`."
    pages.replace(ROOT / "docs/lab/learning.md", "templates", [*lines, "", *pages.lines(about)])


if __name__ == "__main__":
    main()
