"""Rollouts of later steps during updates (`rollout.async`) with slow tools, beside the two phases
of a step one after the other: trajectories per second, and what is learned.

The recipe is the demo (scripts/retool.lua, r1-nano). Before each tool call of a training
trajectory it waits between 0.1 and 2 seconds. Evaluations have no waits. Steps after an evaluation
are left out of the times, because trajectories of later steps go on during evaluations.
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
ROWS = "train = r1.data.generate { count = 100000, seed = 1, row = problems.problem }"
SLOW_ROWS = """train = r1.data.generate { count = 100000, seed = 1, row = function(index)
      local row = problems.problem(index)
      row.slow = true
      return row
    end }"""
SIDES = {
    "synchronous": [],
    "staleness 1, continue": ["rollout.async.staleness=1"],
    "staleness 1, finish": ["rollout.async.staleness=1", "rollout.async.on_update=finish"],
    "staleness 2, continue": ["rollout.async.staleness=2"],
}


def recipe(directory):
    text = (ROOT / "scripts/retool.lua").read_text()
    for old, new in ((CALL, WAIT + CALL), (ROWS, SLOW_ROWS)):
        if text.count(old) != 1:
            raise SystemExit(f"error: scripts/retool.lua has changed: no `{old}`")
        text = text.replace(old, new)
    shutil.copytree(ROOT / "scripts/lib", directory / "lib")
    path = directory / "slow.lua"
    path.write_text(text)
    return path


def train(binary, script, settings, seed, steps, every, directory):
    """The metrics of a run."""
    name = str(time.monotonic_ns())
    subprocess.run([
        binary, "run", str(script), "-q", "--runs-dir", str(directory), "--name", name, f"seed={seed}",
        f"trainer.steps={steps}", f"eval.every={every}", "rollout.concurrency=384", *settings,
    ], check=True, cwd=ROOT)
    return [json.loads(line) for line in (directory / name / "metrics.jsonl").read_text().splitlines()]


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
    args = parser.parse_args()
    runs = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        script = recipe(directory)
        for seed in range(1, args.seeds + 1):
            for name, settings in SIDES.items():
                runs[name].append(train(args.binary, script, settings, seed, args.steps, args.every, directory))
    speed, rows = {}, [("", "trajectories/s", "to synchronous", "step, s", "waiting, s", "updating, s", "staleness", "largest")]
    for name, all_metrics in runs.items():
        steps = [line for metrics in all_metrics for line in metrics if "time/step" in line and line["step"] > 2
                 and (line["step"] - 1) % args.every]
        of = lambda key: mean(line.get(key, 0.0) for line in steps)
        speed[name] = 128 / of("time/step")
        rows.append((name, f"{speed[name]:.1f}", f"{speed[name] / speed['synchronous']:.2f}x", f"{of('time/step'):.2f}",
                     f"{of('time/sampling'):.2f}", f"{of('time/training'):.2f}", f"{of('rollout/staleness'):.2f}",
                     f"{max(line.get('rollout/staleness_max', 0.0) for line in steps):.0f}"))
    table(*rows)
    # The evaluations of each run, by step.
    curves = {name: [{line["step"]: line["eval/accuracy"] for line in metrics if "eval/accuracy" in line} for metrics in all_metrics]
              for name, all_metrics in runs.items()}
    measured = sorted(curves["synchronous"][0])
    rows = [("held-out accuracy after step", *measured, f"each seed after {measured[-1]}")]
    for name, seeds in curves.items():
        last = ", ".join(f"{curve[measured[-1]]:.3f}" for curve in seeds)
        rows.append((name, *(f"{mean(curve[step] for curve in seeds):.3f}" for step in measured), last))
    table(*rows)


if __name__ == "__main__":
    main()
