#!/usr/bin/env python3
"""Trains recipes with the embedded model and several seeds, and tabulates what they learn.

    python3 benches/recipes.py [--only frozen_lake,sokoban] [--seeds 0,1,2] [--jobs 1] [--one-cold-start]
    python3 benches/recipes.py --report-only
    python3 benches/recipes.py --compare [--seeds 0,1,2]
    python3 benches/recipes.py --whole [--seeds 1]

A row of RECIPES is a script of scripts/. For each seed it is run, and r1 eval compares the untrained
model, the model after the cold start if there is one, and the trained model on the same held-out
tasks. Writes the block `measured` of docs/guide/recipes/NAME.md, a picture docs/guide/recipes/NAME.svg, the row
of docs/guide/recipes/README.md. With --compare it trains
the recipe COMPARED with several algorithms from the models after its cold start, and writes the
section "Algorithms in a game of several turns". With --one-cold-start the seeds differ in the
reinforcement learning only, which begins at the cold start of seed 0. With --whole every seed has
its own cold start, and the section "Whole runs" gets a row per run, with its time. Existing runs are
not repeated. Needs only a built r1 and Python.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pages
from curves import COLOURS, panel

ROOT = Path(__file__).resolve().parent.parent
# Script -> overrides.
RECIPES = {
    "retool": [],
    "gsm8k_tool": [],
    "search_qa": [],
    "tablemind": [],
    "deep_research": [],
    "frozen_lake": [],
    "sokoban": [],
    "countdown": [],
    "webshop": [],
    "openenv": [],
    "alfworld": [],
    "gsm8k": [],
    "metamath": [],
    "bandit": [],
    "paperscout": [],
    "multi_tool": [],
    "judge": [],
    "mcp": [],
    "gym": [],
    "verl_reward": [],
    "trl_rewards": [],
    "visual_grid": [],
    "visual_questions": [],
}
COMPARED = "frozen_lake"
# Algorithm -> overrides. All sample 64 trajectories per step and start from the same model.
CRITIC = ["trainer.group_size=1", "trainer.groups_per_step=64", "trainer.critic.lr=1e-4", "trainer.critic.warmup=3"]
ALGORITHMS = {
    "GRPO": ["trainer.algorithm=grpo"],
    "GiGPO": ["trainer.algorithm=gigpo"],
    "PPO (step GAE)": ["trainer.algorithm=ppo", *CRITIC],
    "PPO (bi-level GAE)": ["trainer.algorithm=ppo", "trainer.estimator=gae_bilevel", *CRITIC],
    "tree sampling": ["trainer.algorithm=grpo", "trainer.estimator=tree", "trainer.branch.roots=2"],
}
# Success in training, as a mean of five steps, whose first step the comparison reports.
REACHED = 0.7
PANELS = [
    ("rollout/accuracy", "success"),
    ("reward/mean", "reward"),
    ("rollout/response_tokens", "sampled tokens a trajectory"),
    ("rollout/tool_calls", "tool calls a trajectory"),
]


def run(command):
    """Runs a command: its standard output, its seconds, and the seconds of processor time."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.monotonic()
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        for file in (out, err):
            file.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{out.read()}\n{err.read()}")
        return out.read(), seconds, used.ru_utime + used.ru_stime


def slug(name):
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


def train(options, name, script, settings, seed):
    """Trains a run if it does not exist; returns its directory."""
    folder = options.runs / f"{name}-{seed}"
    if not (folder / "done").exists():
        if options.report_only:
            return None
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        _, seconds, cpu = run([options.r1, "run", ROOT / f"scripts/{script}.lua", "--threads", "1", "--runs-dir", options.runs,
                               "--name", folder.name, f"seed={seed}", "checkpoint.every=0", *settings])
        (folder / "done").write_text(json.dumps({"seconds": seconds, "cpu": cpu}))
        print(f"{name}, seed {seed}: {seconds:.0f} s, {cpu:.0f} s of processor time", flush=True)
    return folder


def evaluate(options, name, script, models, seed):
    """The report of r1 eval for several models; a list with one entry per model."""
    file = options.runs / f"{name}-{seed}.eval.json"
    if not file.exists():
        if options.report_only:
            return None
        command = [options.r1, "eval", ROOT / f"scripts/{script}.lua", "--json", "--threads", "1", "--runs-dir", options.runs,
                   "--name", f"{name}-{seed}-eval", f"seed={seed}"]
        for model in models:
            command += ["--model", model]
        subprocess.run(["rm", "-rf", str(options.runs / f"{name}-{seed}-eval")], check=True)
        file.write_text(run(command)[0].strip().splitlines()[-1])
    report = json.loads(file.read_text())
    return [*report.get("models", [report])]


def series(folder):
    """Metric -> values by step of a run, evaluations left out."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "rollout/accuracy" in row:
            for metric, value in row.items():
                if isinstance(value, (int, float)) and not metric.startswith("eval/"):
                    found.setdefault(metric, []).append(value)
    return found


def draw(curves, file):
    """A picture with a panel for each of PANELS; `curves` are names with a list of series per seed."""
    steps = min(len(s["rollout/accuracy"]) for _, runs in curves for s in runs)
    shown = []
    for metric, title in PANELS:
        lines = [(name, [[max(v, 0) for v in s.get(metric, [])[:steps]] for s in runs]) for name, runs in curves]
        if any(v > 0 for _, runs in lines for run in runs for v in run):
            shown.append((title, lines))
    width = 15 + 375 * len(shown)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="330" viewBox="0 0 {width} 330" '
             'font-family="system-ui, sans-serif" font-size="12" fill="#777">']
    for place, (title, lines) in enumerate(shown):
        parts.append(panel(60 + 375 * place, title, lines, steps))
    for place, (colour, (name, _)) in enumerate(zip(COLOURS, curves)):
        parts.append(f'<rect x="{60 + 175 * place}" y="304" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{80 + 175 * place}" y="310">{name}</text>')
    pages.write(file, "\n".join(parts) + "\n</svg>\n")


def share(metric):
    return f"{metric['value']:.2f} ({metric['low']:.2f}–{metric['high']:.2f})"


def whole(number):
    """A number without decimals; – if it was not measured."""
    return "–" if number is None else f"{number:.0f}"


def result(options, name, seeds, seed):
    """The run of a seed, trained if it does not exist, and the reports of its models: untrained,
    after the cold start if there is one, trained. (None, None) without a run."""
    settings, cold = RECIPES[name], options.runs / f"{name}-{seed}" / "sft"
    first = options.runs / f"{name}-0" / "sft"
    if options.one_cold_start and seed != 0 and 0 not in seeds:
        train(options, name, name, settings, 0)
    if options.one_cold_start and seed != 0 and first.exists():
        new = ["policy.init=null"] if (first / "init").exists() else []
        settings, cold = [*settings, "cold_start=false", f"policy.model={first}", *new], first
    folder = train(options, name, name, settings, seed)
    if folder is None:
        return None, None
    # A new model of the recipe, before its cold start.
    untrained = cold / "init" if (cold / "init").exists() else "r1-nano"
    return folder, evaluate(options, name, name, [untrained, *([cold] if cold.exists() else []), folder], seed)


def transcript(folder, seed):
    """The first held-out trajectory after training, as examples.txt has it."""
    text = (folder / "examples.txt").read_text().partition("Trajectories after training")[2]
    trajectory = text.partition("\n")[2].partition("\ntask 1,")[0].strip("\n")
    lines = [part for line in trajectory.split("\n") for part in textwrap.wrap(line, 96, subsequent_indent=" " * 13, drop_whitespace=False) or [""]]
    return [f"A held-out trajectory after training, seed {seed} (`examples.txt` of the run):", "", "```text", *lines[:24], "```"]


def sentence(folder, arguments):
    """The sentence about the measurement of a run, wrapped."""
    about = pages.about(json.loads((folder / "config.json").read_text()))
    return pages.lines(f"{about}: `python3 benches/recipes.py {arguments}`.")


def measure(options, name, seeds):
    """Writes what was measured into the page of a recipe and its row of docs/guide/recipes/README.md."""
    lines = [
        "| seed | untrained | after the cold start | after training | steps | reply tokens, first and last step | seconds of processor time |",
        "|---|---|---|---|---|---|---|",
    ]
    runs, values, seconds, tasks = [], [], [], 0
    for seed in seeds:
        folder, found = result(options, name, seeds, seed)
        if not found:
            continue
        last = folder
        runs.append(series(folder))
        values.append([model["metrics"]["mean@1"]["value"] for model in found])
        seconds.append(json.loads((folder / "done").read_text())["cpu"])
        cells = [share(model["metrics"]["mean@1"]) for model in found]
        if len(cells) == 2:
            cells.insert(1, "–")
        tokens, tasks = runs[-1]["rollout/response_tokens"], found[0]["tasks"]
        lines.append(f"| {seed} | {' | '.join(cells)} | {len(tokens)} | {tokens[0]:.0f}, {tokens[-1]:.0f} | {whole(seconds[-1])} |")
    if not runs:
        return
    draw([(name, runs)], ROOT / f"docs/guide/recipes/{name}.svg")
    shared = options.one_cold_start and len(values[0]) == 3
    about = f"Success on {tasks} held-out tasks, with intervals of 95 %.{' The seeds have the cold start of seed 0.' if shared else ''}"
    lines = [*textwrap.wrap(about, 100), "", *lines, "",
             *sentence(last, f"--only {name}{' --one-cold-start' if shared else ''}"), "",
             f"![success, reward and sampled tokens against steps]({name}.svg)", "",
             *transcript(options.runs / f"{name}-{seeds[0]}", seeds[0])]
    pages.replace(ROOT / f"docs/guide/recipes/{name}.md", name, lines)
    means = [f"{sum(column) / len(column):.2f}" for column in zip(*values)]
    if len(means) == 2:
        means.insert(1, "–")
    page = ROOT / "docs/guide/recipes/README.md"
    learns = f"{', '.join(means)}; {len(runs[0]['rollout/accuracy'])} steps"
    if len(runs) < 3:
        learns += f", {len(runs)} of 3 seeds"
    minutes = "<1" if seconds[0] and seconds[0] < 60 else whole(seconds[0] and seconds[0] / 60)
    gallery = [
        " | ".join([*line.split(" | ")[:-2], learns, f"{minutes} |"]) if line.startswith(f"| [{name}]({name}.md) ") else line
        for line in page.read_text().split("\n")
    ]
    pages.write(page, "\n".join(gallery))


def whole_runs(options, names, seeds):
    """Rows of runs with their own cold starts."""
    lines = [
        "| recipe | seed | untrained | after the cold start | after training | minutes of one core |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        for seed in seeds:
            folder, found = result(options, name, seeds, seed)
            if found:
                cells = [share(model["metrics"]["mean@1"]) for model in found]
                if len(cells) == 2:
                    cells.insert(1, "–")
                cpu = json.loads((folder / "done").read_text())["cpu"]
                lines.append(f"| [{name}](recipes/{name}.md) | {seed} | {' | '.join(cells)} | {cpu / 60:.1f} |")
                last = folder
    return [*lines, "", *sentence(last, "--whole --seeds 0,1")]


def compare(options, seeds):
    lines = [
        "| algorithm | " + " | ".join(f"seed {seed}" for seed in seeds)
        + f" | mean | training success, last five steps | trajectories until {REACHED} |",
        "|---|" + "---|" * (len(seeds) + 3),
    ]
    curves = []
    for name, settings in ALGORITHMS.items():
        cells, means, ends, firsts, runs = [], [], [], [], []
        for seed in seeds:
            base = train(options, COMPARED, COMPARED, RECIPES[COMPARED], seeds[0] if options.one_cold_start else seed)
            own = ["cold_start=false", f"policy.model={base / 'sft'}", *settings] if base else None
            folder = own and train(options, f"{COMPARED}-{slug(name)}", COMPARED, own, seed)
            found = folder and evaluate(options, folder.name.rpartition("-")[0], COMPARED, [folder], seed)
            if not found:
                continue
            runs.append(series(folder))
            cells.append(share(found[0]["metrics"]["mean@1"]))
            means.append(found[0]["metrics"]["mean@1"]["value"])
            success = runs[-1]["rollout/accuracy"]
            ends.append(sum(success[-5:]) / len(success[-5:]))
            first = next((k for k in range(5, len(success) + 1) if sum(success[k - 5 : k]) / 5 >= REACHED), None)
            firsts.append("never" if first is None else str(64 * first))
        if runs:
            curves.append((name, runs))
            row = [*cells, f"{sum(means) / len(means):.2f}", ", ".join(f"{end:.2f}" for end in ends), ", ".join(firsts)]
            lines.append(f"| {name} | " + " | ".join(row) + " |")
            last = folder
    draw(curves, ROOT / "docs/guide/recipes/algorithms.svg")
    return [*lines, "", *sentence(last, f"--compare{' --one-cold-start' if options.one_cold_start else ''}"), "", "![success, reward and sampled tokens against steps](recipes/algorithms.svg)"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--r1", type=Path, default=pages.binary())
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--runs", type=Path, help="default: runs/recipes, or runs/recipes-own for seeds with their own cold starts")
    parser.add_argument("--jobs", type=int, default=1, help="recipes trained at once")
    parser.add_argument("--only", default=",".join(RECIPES), help="recipes to train; other rows of the tables are kept")
    parser.add_argument("--compare", action="store_true", help="compare algorithms instead")
    parser.add_argument("--whole", action="store_true", help="a table of runs with their own cold starts instead")
    parser.add_argument("--one-cold-start", action="store_true", help="all seeds begin at the cold start of the first")
    parser.add_argument("--report-only", action="store_true", help="use existing runs only")
    options = parser.parse_args()
    options.runs = options.runs or pages.runs("recipes" if options.one_cold_start else "recipes-own")
    options.r1, options.runs = options.r1.resolve(), options.runs.resolve()
    options.runs.mkdir(parents=True, exist_ok=True)
    seeds, names = [int(seed) for seed in options.seeds.split(",")], options.only.split(",")
    if options.compare or options.whole:
        name, lines = ("algorithms", compare(options, seeds)) if options.compare else ("whole runs", whole_runs(options, names, seeds))
        pages.replace(ROOT / "docs/lab/learning.md", name, lines)
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        def all_seeds(name):
            for seed in seeds:
                result(options, name, seeds, seed)

        jobs = [pool.submit(all_seeds, name) for name in names if options.jobs > 1]
        for job in jobs:
            job.result()
    for name in names:
        measure(options, name, seeds)


if __name__ == "__main__":
    main()
