"""`r1 plan` beside measurements on this machine: steps with 1, 2 and 4 processes, which share its
cores. Lengths of the prediction are those of the run that it is compared with (`--like`).

Supervised training and GRPO train a model of 50M parameters in f32, made by `r1 sft` with
`policy.init`; the demo is scripts/retool.lua with r1-nano. The fractions of lua/plan.lua for the CPU
were set by the rows with one process of the 50M model; all other rows are predictions. Measured is
the median of the steps after the first; the exchange contains waiting for the slowest process.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from scale import RECIPE, ROOT, ROWS, TOKENS, run, table

# Replies of a model with random weights end at the limit.
ROLLOUTS = """
return r1.recipe {
  policy = { max_context = 256 },
  env = r1.env {
    format = "hermes", max_steps = 1,
    reset = function(task) return { messages = { r1.user(task.prompt) } } end,
    step = function(state, action) return { done = true } end,
  },
  reward = function(state, outcome) return #outcome.text % 7 end,
  data = { train = r1.data.generate { count = 64, row = function(index)
    local words = {}
    for _ = 1, 32 do words[#words + 1] = tostring(math.random(10, 99)) end
    return { prompt = table.concat(words, " ") }
  end } },
  sampling = { max_new_tokens = 64 },
  trainer = r1.grpo { group_size = 4, groups_per_step = 8, lr = 1e-6, max_grad_norm = 1 },
  checkpoint = { every = 0 },
}
"""


def predict(binary, script, settings, size, path, directory):
    """The seconds of a step by parts, with the lengths of the run `path`."""
    command = [binary, "plan", script, *settings, "--world", str(size), "--like", str(path), "--runs-dir", directory, "--json"]
    time = json.loads(subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout)["time"]
    of = lambda *names: sum(part["seconds"] for part in time["parts"] if part["part"] in names)
    gradients, trajectories = of("exchange of gradients"), of("exchange of trajectories")
    return {
        "sampling": of("prefill", "decode", "tools") + trajectories,
        "training": of("log-probabilities", "forward and backward", "optimiser") + gradients,
        "exchange": gradients + trajectories,
        "step": time["step_seconds"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the r1 binary")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    args = parser.parse_args()
    rows = [("step", "processes", "part", "predicted, s", "measured, s", "error")]
    with tempfile.TemporaryDirectory() as directory:
        scripts = {"scale.lua": RECIPE % (TOKENS // 2, ROWS, ROWS * TOKENS // 2), "rollouts.lua": ROLLOUTS}
        for name, text in scripts.items():
            (Path(directory) / name).write_text(text)
        supervised, rollouts = (str(Path(directory) / name) for name in scripts)
        _, _, path = run(args.binary, ["sft", supervised, "trainer.steps=1"], 2, directory)
        model = [f"policy.model={path / 'init'}"]
        steps = [f"trainer.steps={args.steps}"]
        evaluation = ["eval.before=false", "eval.after=false"]
        sides = [
            ("SFT, 50M", "sft", supervised, [*model, "policy.init=null"], ["step", "exchange"]),
            ("GRPO, 50M", "run", rollouts, model, ["sampling", "training", "exchange", "step"]),
            ("GRPO, the demo", "run", "scripts/retool.lua", evaluation, ["sampling", "training", "exchange", "step"]),
        ]
        for name, command, script, settings, parts in sides:
            for size in args.ranks:
                more = ["--nproc", str(size)] if size > 1 else []
                threads = max(2 // size, 1)
                measured, _, path = run(args.binary, [command, script, *settings, *steps, *more], threads, directory)
                predicted = predict(args.binary, script, settings, size, path, directory)
                for part in parts:
                    seconds = median(step.get(f"time/{part}", 0.0) for step in measured)
                    if part != "exchange" or size > 1:
                        error = f"{predicted[part] / seconds - 1:+.0%}"
                        rows.append((name, size, part, f"{predicted[part]:.3f}", f"{seconds:.3f}", error))
    table(*rows)


if __name__ == "__main__":
    main()
