#!/usr/bin/env bash
# Builds r1 and packs it for a CUDA machine with torch 2.11 (without Rust), with checks and timings.
#
#   benches/gpu-check.sh           build and pack; run the checks if this machine has a GPU
#   target/gpu-check/run.sh OUT    on the GPU machine, in the unpacked folder: checks and timings, written to OUT
set -euo pipefail
cd "$(dirname "$0")/.."

LIBTORCH=$(setup/libtorch.sh) && export LIBTORCH
cargo build --quiet --release --bin r1
bench() {
  cargo build --quiet --release --bench "$1" --message-format=json |
    python3 -c 'import json, sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["kind"] == ["bench"]][0])'
}

pack=target/gpu-check
rm -rf "$pack" && mkdir -p "$pack"
cp "${CARGO_TARGET_DIR:-target}/release/r1" "$pack/r1"
for part in decode update; do cp "$(bench $part)" "$pack/$part"; done
strip "$pack/r1" "$pack/decode" "$pack/update"
cp benches/gpu_check.lua "$pack/"
cp -r models/r1-nano "$pack/r1-nano"
cat > "$pack/shape.py" <<'PY'
"""Writes a Qwen2 model of Qwen2.5-1.5B's shape with random weights in bf16, in Hugging Face layout, with torch alone."""
import json, sys
from pathlib import Path
import torch

dir = Path(sys.argv[1])
layers = int(sys.argv[2]) if len(sys.argv) > 2 else 28
hidden, inner, vocab, keys = 1536, 8960, 151936, 256
config = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": hidden,
    "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 12, "num_key_value_heads": 2,
    "vocab_size": vocab, "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}
shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
for layer in range(layers):
    own = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.o_proj": [hidden, hidden],
           "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
    shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    for name, width in (("q", hidden), ("k", keys), ("v", keys)):
        shapes |= {f"model.layers.{layer}.self_attn.{name}_proj.weight": [width, hidden],
                   f"model.layers.{layer}.self_attn.{name}_proj.bias": [width]}
header, end = {}, 0
for name, shape in shapes.items():
    begin, end = end, end + 2 * torch.Size(shape).numel()
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
dir.mkdir(exist_ok=True)
(dir / "config.json").write_text(json.dumps(config, indent=1))
with open(dir / "model.safetensors", "wb") as file:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name, shape in shapes.items():
        norm = name.endswith("norm.weight")
        values = torch.ones(shape) if norm else 0.02 * torch.randn(shape, device=device)
        file.write(values.bfloat16().cpu().view(torch.uint8).numpy().tobytes())
PY
git describe --always --dirty > "$pack/commit"

cat > "$pack/run.sh" <<'RUN'
#!/usr/bin/env bash
# Checks and times r1 on this machine's GPU with the torch 2.11 of its python3; writes
# OUT/DATE-GPU.md.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:?usage: run.sh OUT [MODEL ...]}; shift
command -v nvidia-smi > /dev/null && gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) ||
  { echo "gpu-check: skipped, this machine has no NVIDIA GPU (nvidia-smi does not answer)"; exit 0; }
torch=$(python3 -c 'import os, torch; assert torch.__version__.startswith("2.11."), torch.__version__; print(os.path.dirname(torch.__file__))') ||
  { echo "error: gpu-check needs a python3 with a CUDA build of torch 2.11" >&2; exit 1; }
export R1_CUDA_TORCH=$torch LD_LIBRARY_PATH="$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$out"
name="$(date +%F)-$(echo "$gpu" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9' '-' | sed 's/^-*//; s/-*$//')"
{
  echo "# r1 on a GPU"
  echo
  echo "$(date +%F), $gpu, torch $(python3 -c 'import torch; print(torch.__version__)'), r1 $(cat commit)."
  echo
} > "$out/$name.md"
# A real shape with random weights, of a size that is trained on one GPU.
python3 shape.py qwen2.5-1.5b
set -- r1-nano qwen2.5-1.5b "$@"
status=0
timeout 180 ./r1 lua gpu_check.lua "$@" | tee -a "$out/$name.md" || status=1
# Batches: sequences of different lengths, some of which start while others decode.
{
  echo
  echo "| model | sequences | largest batch | steps from graphs | against scored: mean, largest | ids as without graphs | as with the sampler of the host | |"
  echo "|---|---|---|---|---|---|---|---|"
} >> "$out/$name.md"
for model in "$@"; do
  timeout 180 python3 - "$model" >> "$out/$name.md" <<'PY' || status=1
import json, os, subprocess, sys
model = sys.argv[1]
def sides(*more, **env):
    side = subprocess.Popen(["./decode", model, "bf16", "cuda", *more], env=os.environ | env, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    questions = [{"check": batch, "prompt": 60, "new": 64} for batch in (1, 8, 64)]
    text, _ = side.communicate("".join(json.dumps(question) + "\n" for question in questions))
    return [json.loads(line) for line in text.splitlines()[1:]]
failed = False
def same(a, b):
    pairs = [(x, y) for one, other in zip(a["ids"], b["ids"]) for x, y in zip(one, other)]
    return sum(x == y for x, y in pairs) / max(1, len(pairs))
for batch, graphs, eager, host in zip((1, 8, 64), sides(), sides("eager"), sides(R1_SAMPLER="host")):
    share = graphs["graph_share"] or 0
    good = graphs["max_batch"] == batch and share > 0.9 and graphs["mean"] < 0.02 and same(graphs, host) > 0.5
    failed |= not good
    print(f"| {model} | {batch} | {graphs['max_batch']} | {share:.0%} | {graphs['mean']:.1e}, {graphs['worst']:.1e} | "
          f"{same(graphs, eager):.0%} | {same(graphs, host):.0%} | {'ok' if good else 'FAILED'} |")
sys.exit(failed)
PY
done
{
  echo
  echo "| model | type, graphs | batch | a step | tokens/s |"
  echo "|---|---|---|---|---|"
} >> "$out/$name.md"
for model in "$@"; do
  for kind in f32 "bf16 eager" bf16; do
    timeout 120 python3 - "$model" $kind >> "$out/$name.md" <<'PY' || status=1
import json, subprocess, sys
model, kind, *eager = sys.argv[1:]
side = subprocess.Popen(["./decode", model, kind, "cuda", *eager], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
kind += ", no graphs" if eager or kind == "f32" else ", graphs"
def measure(question):
    print(json.dumps(question), file=side.stdin, flush=True)
    line = side.stdout.readline()
    if not line:
        sys.exit(f"error: decode stopped with {side.wait()}")
    return json.loads(line)
side.stdout.readline()
for batch in (1, 8, 64):
    times = {}
    for new in (1, 65) * 4:
        seconds = measure({"batch": batch, "prompt": 32, "new": new})["seconds"]
        times[new] = min(seconds, times.get(new, seconds))
    step = (times[65] - times[1]) / 64
    print(f"| {model} | {kind} | {batch} | {step * 1e3:.2f} ms | {batch / step:,.0f} |")
PY
  done
done
{
  echo
  echo "| model | tokens in an update | an update | tokens/s | of the peak rate | memory |"
  echo "|---|---|---|---|---|---|"
} >> "$out/$name.md"
for model in "$@"; do
  timeout 180 python3 - "$model" "$gpu" >> "$out/$name.md" <<'PY' || status=1
import json, subprocess, sys
model, gpu = sys.argv[1:]
# Dense bf16 operations/s, from the data sheets.
peaks = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
peak = next((rate for name, rate in sorted(peaks.items(), key=lambda it: -len(it[0])) if name in gpu), None)
for tokens in (4096, 32768):
    # Rows of 1024 tokens, or the model's limit, half of them sampled.
    longest = min(1024, json.load(open(f"{model}/config.json"))["max_position_embeddings"])
    question = {"dir": model, "device": "cuda", "trajectories": [[longest // 2, longest // 2]] * (tokens // longest),
                "tokens_per_batch": 16384, "repetitions": 5}
    done = subprocess.run(["./update", json.dumps(question)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: update stopped with {done.returncode}: {done.stderr}")
    answer = json.loads(done.stdout)
    seconds = min(answer["seconds"])
    rate = answer["tokens"] / seconds
    # 6 operations per parameter and token: forward and backward, without attention scores.
    share = f"{6 * answer['parameters'] * rate / peak:.0%}" if peak else "unknown"
    print(f"| {model} | {answer['tokens']:,} | {seconds * 1e3:.0f} ms | {rate:,.0f} | {share} | {answer['peak'] / 2**30:.1f} GiB |")
PY
done
cat "$out/$name.md"
exit $status
RUN
chmod +x "$pack/run.sh"
tar -C target -cJf target/gpu-check.tar.xz gpu-check
echo "packed target/gpu-check.tar.xz ($(du -h target/gpu-check.tar.xz | cut -f1)): unpack it on a CUDA machine with torch 2.11 and run gpu-check/run.sh OUT"
exec "$pack/run.sh" benches/results "$@"
