#!/usr/bin/env python3
"""Whether the bits of a run depend on the instruction set: the table of docs/lab/cpu-kernels.md.

    python3 benches/instruction_sets.py [--r1 target/release/r1]

Trains scripts/retool.lua with r1-nano for 2 steps of 8 trajectories on one thread, in f32 and bf16,
with each instruction set that the processor has and without the kernels (R1_KERNELS), and compares
weights, sampled tokens and log-probabilities. Needs only a built r1 and Python.
"""

import argparse
import array
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pages

# Type -> pairs that are compared: a set, and the one that it is compared with.
PAIRS = {
    "f32": [("avx512bf16", "avx512"), ("avx2", "avx512"), ("base", "avx512"), ("off", "avx512")],
    "bf16": [("avx2", "base"), ("avx512", "base"), ("avx512bf16", "base"), ("off", "base")],
}
STEPS = 2
# Prints the sampled tokens and their log-probabilities of a step, a line per trajectory.
SHOW = """
for _, trajectory in ipairs(r1.store.trajectories(arg[1], tonumber(arg[2]), { ids = true })) do
  local ids, logps = {}, {}
  for _, step in ipairs(trajectory.steps) do
    for index, id in ipairs(step.response_ids) do
      table.insert(ids, id)
      table.insert(logps, step.logprobs[index])
    end
  end
  print(r1.json.encode { ids = ids, logps = logps })
end
"""


def train(r1, folder, dtype, kernels):
    """Weights by name, and a (ids, log-probabilities) for each trajectory."""
    run = folder / f"{dtype}-{kernels}"
    call([r1, "run", pages.ROOT / "scripts/retool.lua", "--threads", "1", "--runs-dir", folder, "--name", run.name, "--quiet",
          "seed=0", f"policy.dtype={dtype}", f"trainer.steps={STEPS}", "trainer.group_size=4", "trainer.groups_per_step=2",
          "eval.every=0"], R1_KERNELS=kernels)
    used = json.loads((run / "config.json").read_text())["kernels"]
    if used != kernels:
        return None
    sampled = []
    for step in range(1, STEPS + 1):
        lines = call([r1, "lua", folder / "show.lua", run, str(step)]).splitlines()
        sampled += [(row["ids"], row["logps"]) for row in map(json.loads, lines)]
    return weights(run / f"checkpoints/step-{STEPS:06d}/model.safetensors"), sampled


def call(command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=os.environ | environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def weights(file):
    """The numbers of a safetensors file in f32 or bf16, by tensor."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, tensor in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in tensor["data_offsets"])
            raw = data[begin:end]
            if tensor["dtype"] == "BF16":
                raw = b"".join(b"\0\0" + raw[at : at + 2] for at in range(0, len(raw), 2))
            found[name] = array.array("f", raw)
    return found


def row(dtype, pair, found):
    """A row of the table."""
    (own, sampled), (other, expected) = (found[kernels] for kernels in pair)
    largest = max(abs(a - b) for name in own for a, b in zip(own[name], other[name]))
    equal = [a == b for (a, _), (b, _) in zip(sampled, expected)]
    # After a different token, all that follows is another text.
    pairs = [(a, b) for (ids, own_logps), (other_ids, logps) in zip(sampled, expected)
             for i, j, a, b in zip(ids, other_ids, own_logps, logps) if ids == other_ids or i == j]
    logps = max(abs(a - b) for a, b in pairs)
    tokens = "equal" if all(equal) else f"{sum(equal)} of {len(equal)} trajectories"
    number = lambda value: f"{value:.1e}".replace("e-0", "e-") if value else "0"
    return (f"| {dtype} | `{pair[0]}` and `{pair[1]}` | {'differ' if largest else 'equal bits'} | {number(largest)} "
            f"| {tokens} | {number(logps)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--r1", type=Path, default=pages.binary())
    options = parser.parse_args()
    print("| type | compared | weights after step 2 | largest difference of a weight | sampled tokens | largest difference of a log-probability |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "show.lua").write_text(SHOW)
        for dtype, pairs in PAIRS.items():
            found = {kernels: train(options.r1, folder, dtype, kernels) for kernels in dict.fromkeys(sum(pairs, ()))}
            for pair in pairs:
                if all(found[kernels] for kernels in pair):
                    print(row(dtype, pair, found), flush=True)
                else:
                    print(f"the processor has not both of {' and '.join(pair)}", file=sys.stderr)


if __name__ == "__main__":
    main()
