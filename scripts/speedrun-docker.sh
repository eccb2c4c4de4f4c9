#!/usr/bin/env bash
# scripts/speedrun.sh in a container, with the GPUs of this machine. The image r1:cuda is built if
# it is missing. Only Docker 23 or newer, the NVIDIA driver and the NVIDIA container toolkit are
# needed here: neither Rust nor Python.
#
#   scripts/speedrun-docker.sh [ppo|grpo] [KEY=VALUE …]
#   NPROC=8 scripts/speedrun-docker.sh grpo                   a process for each of 8 GPUs
#   R1_IMAGE=registry/r1:cuda scripts/speedrun-docker.sh      this image; nothing is built
#
# The container runs as the calling user. It has scripts/ (read only), data/ and runs/ of this
# checkout, the Hugging Face cache (HF_HOME, or ~/.cache/huggingface) and the cache of CUDA kernels.
set -euo pipefail

fail() { echo "error: $1" >&2; echo "  hint: $2" >&2; exit 1; }
algorithm=${1:-ppo}
shift || true
case $algorithm in
  ppo | grpo) ;;
  *) echo "usage: scripts/speedrun-docker.sh [ppo|grpo] [KEY=VALUE …]" >&2; exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}
hub=${HF_HOME:-$cache/huggingface}
home=/home/r1  # HOME in the image

command -v docker > /dev/null ||
  fail "docker is not found" "install Docker Engine (https://docs.docker.com/engine/install), or run scripts/speedrun.sh without a container"
if ! server=$(docker version --format '{{.Server.Version}}' 2>&1); then
  case $server in
    *"permission denied"*) fail "you may not use the Docker daemon: ${server##*$'\n'}" "add yourself to the group docker and log in again, or use sudo" ;;
    *) fail "the Docker daemon does not answer: ${server##*$'\n'}" "start it (systemctl start docker)" ;;
  esac
fi
server=${server##*$'\n'}
[[ ! ${server%%.*} =~ ^[0-9]+$ ]] || [ "${server%%.*}" -ge 23 ] ||
  fail "Docker is version $server, and 23 or newer is needed" "update Docker Engine"

# The GPUs are tested before the image is built, which takes long, with the base of the image.
image=${R1_IMAGE:-r1:cuda} probe=$image build=no
if [ -z "${R1_IMAGE:-}" ] && ! docker image inspect "$image" > /dev/null 2>&1; then
  build=yes
  probe=$(sed -n 's/^ARG DEBIAN_IMAGE=//p' "$root/Dockerfile")
fi
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
toolkit="install the NVIDIA container toolkit (https://docs.nvidia.com/datacenter/cloud-native/container-toolkit), run: nvidia-ctk runtime configure --runtime=docker, and restart Docker"
if ! found=$(docker run --rm --gpus all --entrypoint nvidia-smi "$probe" --query-gpu=driver_version --format=csv,noheader 2> "$errors"); then
  text=$(cat "$errors")
  case $text in
    *"could not select device driver"* | *"unresolvable CDI"* | *"nvidia-container-runtime-hook"*"not found"*)
      fail "Docker can't use the GPUs: the NVIDIA container toolkit is missing" "$toolkit" ;;
    *libnvidia-ml.so* | *"driver not loaded"* | *"driver/library version mismatch"* | *"communicate with the NVIDIA driver"*)
      fail "the NVIDIA driver of this machine does not work: $text" "run nvidia-smi; install driver 580 or newer, or reboot after an update of the driver" ;;
    *"executable file not found"*)
      fail "the container has no nvidia-smi" "$toolkit" ;;
    *) fail "the test of the GPUs failed: ${text:-$found}" "try: docker run --rm --gpus all --entrypoint nvidia-smi $probe" ;;
  esac
fi
driver=${found%%$'\n'*}
[[ ! $driver =~ ^[0-9]+\. ]] || [ "${driver%%.*}" -ge 580 ] ||
  fail "the NVIDIA driver is $driver, and torch 2.11 for CUDA 13.0 needs 580 or newer" "update the driver, then reboot"
rm -f "$errors"

if [ $build = yes ]; then
  echo "speedrun-docker: building $image, once (downloads several GB, and compiles r1)" >&2
  docker build --target cuda --tag "$image" "$root" ||
    fail "the image $image could not be built" "see the message above; R1_IMAGE names an image that exists"
fi

# Docker would create missing directories, and they would belong to root.
mkdir -p "$root/data" "$root/runs" "$hub" "$cache/r1/kernels"
hub=$(cd "$hub" && pwd) cache=$(cd "$cache" && pwd)
user=$(id -u):$(id -g)
# The root of a rootless Docker is the calling user.
case $(docker info --format '{{.SecurityOptions}}' 2> /dev/null || true) in *name=rootless*) user=0:0 ;; esac
options=(--rm --init --gpus all --user "$user" --stop-timeout 600)
if [ -t 0 ] && [ -t 1 ]; then options+=(--interactive --tty); fi
options+=(--mount "type=bind,source=$root/scripts,target=/work/scripts,readonly")
options+=(--mount "type=bind,source=$root/data,target=/work/data")
options+=(--mount "type=bind,source=$root/runs,target=/work/runs")
options+=(--mount "type=bind,source=$hub,target=$home/.cache/huggingface")
options+=(--mount "type=bind,source=$cache/r1/kernels,target=$home/.cache/r1/kernels")
# Variables without a value here are not set in the container.
for name in NPROC CUDA_VISIBLE_DEVICES HF_TOKEN HF_ENDPOINT HF_HUB_OFFLINE HTTPS_PROXY NO_PROXY; do
  options+=(--env "$name")
done
# Without policy.device=cuda, r1 would use the CPU if no GPU were usable.
exec docker run "${options[@]}" --entrypoint /work/scripts/speedrun.sh "$image" "$algorithm" policy.device=cuda "$@"
