#!/usr/bin/env bash
# HotpotQA with Qwen2.5-1.5B-Instruct, from data to index to training, with the settings of
# Agent-R1's first generation (docs/guide/recipes/speedrun.md).
#
#   scripts/speedrun.sh [ppo|grpo] [KEY=VALUE …]
#   NPROC=8 scripts/speedrun.sh grpo                a process for each of 8 GPUs
#   scripts/speedrun-docker.sh grpo                 the same in a container
set -euo pipefail

algorithm=${1:-ppo}
shift || true
case $algorithm in
  ppo) own=(trainer.algorithm=ppo trainer.group_size=1 trainer.groups_per_step=128
    trainer.critic.lr=1e-5 trainer.critic.warmup=5 trainer.kl.place=reward) ;;
  grpo) own=(trainer.group_size=5 trainer.groups_per_step=128) ;;
  *) echo "usage: scripts/speedrun.sh [ppo|grpo] [KEY=VALUE …]" >&2; exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
data=$root/data

[ -e "$data/hotpotqa/train.jsonl" ] || r1 data get hotpotqa --out "$data/hotpotqa"
[ -e "$data/hotpotqa-index" ] || r1 index build --hf BeIR/hotpotqa --subset corpus --split corpus --out "$data/hotpotqa-index"

processes=()
[ -z "${NPROC:-}" ] || processes=(--nproc "$NPROC")
exec r1 run "$root/scripts/search_qa.lua" --name "speedrun-$algorithm" "${processes[@]}" cold_start=false \
  policy.model=Qwen/Qwen2.5-1.5B-Instruct policy.max_context=9216 \
  params.index="$data/hotpotqa-index" params.passages=5 params.reward=qa_em_and_format \
  env.format=auto env.max_result_tokens=2048 \
  env.system="Think in <think></think> first, then search or give the answer alone in <answer></answer>." \
  data.train="$data/hotpotqa/train.jsonl" data.eval="$data/hotpotqa/validation.jsonl" \
  eval.every=20 sampling.max_new_tokens=1024 \
  trainer.steps=200 trainer.mini_batches=2 trainer.lr=1e-6 trainer.kl.coef=0.001 \
  trainer.gradient_checkpointing=true trainer.tokens_per_batch=16384 "${own[@]}" "$@"
