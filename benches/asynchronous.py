"""Rollouts of later steps during updates (`rollout.async`) with slow tools, beside the two phases
of a step one after the other: trajectories per second, and what is learned. With `--tails`: more
rollouts than a step needs (`rollout.oversample`), with tools that are rarely very slow.

The recipe is the demo (scripts/retool.lua, r1-nano). Before each tool call of a training
trajectory it waits between 0.1 and 2 seconds; with `--tails` 0.1 seconds, and 5 before a quarter of
the calls of every 16th task. Evaluations have no waits. Steps after an evaluation are left out of the times,
because trajectories of later steps go on during evaluations.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CALL = "for _, result in ipairs(r1.call_tools("
WAIT = "if state.task.slow then r1.sleep(0.1 + 1.9 * math.random()) end\n    "
# `task.slow` is the longest time in seconds.
TAIL = """if state.task.slow then
      local is_late = state.task.slow > 1 and math.random() < 0.25
      r1.sleep(if is_late then state.task.slow else 0.1)
    end
    """
ROWS = "train = r1.data.generate { count = 100000, seed = 1, row = problems.problem }"
SLOW_ROWS = """train = r1.data.generate { count = 100000, seed = 1, row = function(index)
      local row = problems.problem(index)
      row.slow = SLOW
      return row
    end }"""
SIDES = {
    "synchronous": [],
    "staleness 1, continue": ["rollout.async.staleness=1"],
    "staleness 1, finish": ["rollout.async.staleness=1", "rollout.async.on_update=finish"],
    "staleness 2, continue": ["rollout.async.staleness=2"],
    "one process learns, one samples": ["rollout.async.staleness=1", "rollout.async.ranks=1", "--nproc", "2"],
}
TAILS = {
    "all trajectories": [],
    "4 more groups, drop": ["rollout.oversample.groups=4"],
    "4 more groups, carry": ["rollout.oversample.groups=4", "rollout.oversample.unfinished=carry"],
    "2 more samples": ["rollout.oversample.samples=2"],
}


def recipe(directory, tails):
    text = (ROOT / "scripts/retool.lua").read_text()
    wait, slow = (TAIL, "index % 16 == 0 and 5 or 0.1") if tails else (WAIT, "true")
    for old, new in ((CALL, wait + CALL), (ROWS, SLOW_ROWS.replace("SLOW", slow))):
        if text.count(old) != 1:
            raise SystemExit(f"error: scripts/retool.lua has changed: no `{old}`")
        text = text.replace(old, new)
    shutil.copytree(ROOT / "scripts/lib", directory / "lib")
    path = directory / "slow.lua"
    path.write_text(text)
    return path


def train(binary, script, settings, seed, args, directory):
    """The metrics of a run, and the share of its trained trajectories that are of slow tasks."""
    name = str(time.monotonic_ns())
    subprocess.run([
        binary, "run", str(script), "-q", "--runs-dir", str(directory), "--name", name, f"seed={seed}",
        f"trainer.steps={args.steps}", f"eval.every={args.every}", "rollout.concurrency=384", *settings,
    ], check=True, cwd=ROOT)
    metrics = [json.loads(line) for line in (directory / name / "metrics.jsonl").read_text().splitlines()]
    count = lambda where: len(subprocess.run(
        [binary, "traj", "where", name, where, "--runs-dir", str(directory), "--json", "-n", "0"],
        check=True, cwd=ROOT, capture_output=True, text=True).stdout.splitlines())
    return metrics, count("task.slow == 5") / count("task.slow") if args.tails else 0.0


def table(*rows):
    head, *rest = [[str(cell) for cell in row] for row in rows]
    print("\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rest]), end="\n\n", flush=True)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the r1 binary")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tails", action="store_true", help="rollout.oversample, with tools that are rarely slow")
    args = parser.parse_args()
    sides = TAILS if args.tails else SIDES
    runs, shares, first = {name: [] for name in sides}, {name: [] for name in sides}, next(iter(sides))
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        script = recipe(directory, args.tails)
        for seed in range(1, args.seeds + 1):
            for name, settings in sides.items():
                metrics, share = train(args.binary, script, settings, seed, args, directory)
                runs[name].append(metrics)
                shares[name].append(share)
    speed, rows = {}, [("", "trajectories/s", "to the first", "step, s", "waiting, s", "updating, s", "staleness", "largest",
                          *(["slow tasks", "response tokens"] if args.tails else []))]
    for name, all_metrics in runs.items():
        steps = [line for metrics in all_metrics for line in metrics if "time/step" in line and line["step"] > 2
                 and (line["step"] - 1) % args.every]
        of = lambda key: mean(line.get(key, 0.0) for line in steps)
        speed[name] = 128 / of("time/step")
        rows.append((name, f"{speed[name]:.1f}", f"{speed[name] / speed[first]:.2f}x", f"{of('time/step'):.2f}",
                     f"{of('time/sampling'):.2f}", f"{of('time/training'):.2f}", f"{of('rollout/staleness'):.2f}",
                     f"{max(line.get('rollout/staleness_max', 0.0) for line in steps):.0f}",
                     *([f"{mean(shares[name]):.1%}", f"{of('rollout/response_tokens'):.1f}"] if args.tails else [])))
    table(*rows)
    # The evaluations of each run, by step.
    curves = {name: [{line["step"]: line["eval/accuracy"] for line in metrics if "eval/accuracy" in line} for metrics in all_metrics]
              for name, all_metrics in runs.items()}
    measured = sorted(curves[first][0])
    rows = [("held-out accuracy after step", *measured, f"each seed after {measured[-1]}")]
    for name, seeds in curves.items():
        last = ", ".join(f"{curve[measured[-1]]:.3f}" for curve in seeds)
        rows.append((name, *(f"{mean(curve[step] for curve in seeds):.3f}" for step in measured), last))
    table(*rows)


if __name__ == "__main__":
    main()
