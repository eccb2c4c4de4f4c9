"""Two processes on two cores: supervised training beside one process with two threads and beside
torch's DistributedDataParallel, and reinforcement learning beside one process.

All sides of the first table train one model (50M parameters in f32, made by `r1 sft` with
`policy.init`). r1's micro-batches have 1,024 tokens, the batch of torch 2,048, half of them on each
of two processes. Sides take turns; the fastest step of each is compared, because other load on the
machine only adds time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
ROWS, TOKENS = 16, 128
# Every conversation has about TOKENS tokens with the tokenizer that is made for it.
RECIPE = """
local function row(index)
  local words = {}
  for _ = 1, %d do words[#words + 1] = tostring(math.random(10, 99)) end
  return { messages = { r1.user("Repeat"), r1.assistant(table.concat(words, " ")) } }
end
return r1.recipe {
  policy = { init = { hidden_size = 768, intermediate_size = 2048, num_hidden_layers = 8,
    num_attention_heads = 12, num_key_value_heads = 4, vocab_size = 512 } },
  env = r1.env { format = "hermes" },
  data = { train = r1.data.generate { count = 1000, row = row } },
  trainer = r1.sft { batch_size = %d, lr = 1e-5, warmup = 0, tokens_per_batch = %d },
}
"""


def run(binary, arguments, threads, directory):
    """The metrics of the steps of a run, and the seconds of the command."""
    name = str(time.monotonic_ns())
    command = [binary, *arguments, "-q", "--threads", str(threads), "--runs-dir", directory, "--name", name]
    began = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT)
    lines = [json.loads(line) for line in (Path(directory) / name / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["step"] > 1], time.perf_counter() - began, Path(directory) / name


def ddp(model, size, steps, rank, port):
    """The same training with transformers and DistributedDataParallel (alone with one process)."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    network.config.use_cache = False
    network.train()
    trained = network
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
        trained = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    generator = torch.Generator().manual_seed(rank)
    seconds = []
    for _ in range(steps):
        ids = torch.randint(0, network.config.vocab_size, (ROWS // size, TOKENS), generator=generator)
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        trained(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps(seconds[1:]))


def peer(model, size, threads, steps):
    """The seconds of the steps of DistributedDataParallel."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    question = lambda rank: json.dumps([str(model), size, steps, rank, port])
    ranks = [subprocess.Popen([sys.executable, __file__, "--peer", question(rank)], env=environment, stdout=subprocess.PIPE, text=True)
             for rank in range(size)]
    return json.loads([rank.communicate()[0] for rank in ranks][0].splitlines()[-1])


def table(*rows):
    head, *rest = [[str(cell) for cell in row] for row in rows]
    print("\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rest]), end="\n\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="the r1 binary")
    parser.add_argument("--bench", help="not used here")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return ddp(*json.loads(args.peer))
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "scale.lua"
        script.write_text(RECIPE % (TOKENS // 2, ROWS, ROWS * TOKENS // 2))
        train = ["sft", str(script), f"trainer.steps={args.steps}"]
        sides = {
            "1 process, 2 threads": ([], 2),
            "1 process, 2 threads, 2 shards": (["trainer.gradient_shards=2"], 2),
            "2 processes, 1 thread each": (["--nproc", "2"], 1),
        }
        # A bucket that all gradients fit into is sent after the backward pass.
        divided = {
            "2 processes, one bucket": (["--nproc", "2", "trainer.bucket_cap_mb=10000"], 1),
            "2 processes, zero_stage 1": (["--nproc", "2", "trainer.zero_stage=1"], 1),
            "2 processes, zero_stage 2": (["--nproc", "2", "trainer.zero_stage=2"], 1),
            "2 processes, zero_stage 3": (["--nproc", "2", "trainer.zero_stage=3"], 1),
        }
        best, resident, model = {}, {}, None
        peers = {}
        for _ in range(2):
            for name, (more, threads) in (sides | divided).items():
                steps, _, path = run(args.binary, [*train, *more], threads, directory)
                best[name] = min(*steps, best.get(name, steps[0]), key=lambda step: step["time/step"])
                resident[name] = steps[-1]["memory/resident"]
                model = path / "init"
            for name, size, threads in (("torch, 1 process, 2 threads", 1, 2), ("torch DDP, 2 processes", 2, 1)):
                peers[name] = min(*peer(model, size, threads, args.steps), peers.get(name, 1e9))
        size = (model / "model.safetensors").stat().st_size / 2**20
        first = next(iter(sides))
        rows = [("supervised training", "step, s", "tokens/s", "to 1 process", "exchange, s", "overlapped",
                 f"MiB sent ({size:.0f} of gradients)", "resident, MiB")]
        for name, step in best.items():
            seconds, exchange = step["time/step"], step.get("time/exchange", 0.0)
            overlapped = step.get("time/exchange_overlapped", 0.0) / exchange if exchange else 0.0
            rows.append((f"r1, {name}", f"{seconds:.3f}", f"{step['sft/packed_tokens'] / seconds:.0f}",
                         f"{best[first]['time/step'] / seconds:.2f}x", f"{exchange:.3f}", f"{overlapped:.0%}",
                         f"{step.get('throughput/exchanged', 0.0):.0f}", f"{resident[name]:.0f}"))
        alone = peers["torch, 1 process, 2 threads"]
        for name, seconds in peers.items():
            rows.append((name, f"{seconds:.3f}", f"{ROWS * TOKENS / seconds:.0f}", f"{alone / seconds:.2f}x", "–", "–", "–", "–"))
        table(*rows)

        rollouts = ["run", "scripts/retool.lua", "trainer.steps=12", "eval.before=false", "eval.after=false"]
        rows = [("reinforcement learning: the demo, r1-nano", "step, s", "sampling, s", "training, s", "exchange, s", "to 1 process")]
        steps = {}
        for _ in range(2):
            for name, (more, threads) in sides.items():
                steps.setdefault(name, []).extend(run(args.binary, [*rollouts, *more], threads, directory)[0])
        middle = lambda name, metric: median(step.get(metric, 0.0) for step in steps[name])
        for name in sides:
            parts = [middle(name, f"time/{part}") for part in ("step", "sampling", "training", "exchange")]
            rows.append((f"r1, {name}", *(f"{part:.3f}" for part in parts), f"{middle(first, 'time/step') / parts[0]:.2f}x"))
        table(*rows)


if __name__ == "__main__":
    main()
