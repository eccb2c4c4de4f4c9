# Images of r1: `cpu`, and `cuda`, which is `cpu` with the CUDA build of torch 2.11.
#
#   docker build --target cuda --tag r1:cuda .
#   docker build --target cpu --tag r1:cpu .
#   docker run --rm --init --gpus all r1:cuda run scripts/retool.lua policy.device=cuda
#
# The build needs BuildKit (Docker 23 or newer). It needs no GPU. Running `cuda` needs an NVIDIA
# driver of version 580 or newer and the NVIDIA container toolkit.

# The same Debian in all stages: the libraries of the build stage have to run in the others.
ARG DEBIAN_IMAGE=debian:12.12-slim
ARG RUST_IMAGE=rust:1.95.0-slim-bookworm

FROM ${RUST_IMAGE} AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-pip \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    cargo install just --locked --version 1.59.0
WORKDIR /src
# libtorch before the sources: its layer stays when they change.
COPY setup/libtorch.sh setup/
RUN --mount=type=cache,target=/root/.cache/pip setup/libtorch.sh
# What the build reads, and nothing else: a change of a page or a script builds nothing again.
COPY Cargo.toml Cargo.lock build.rs Justfile stylua.toml ./
COPY .cargo .cargo
COPY crates crates
COPY docs/reference/metrics.md docs/reference/
COPY lua lua
COPY models/r1-nano models/r1-nano
COPY setup/install.sh setup/
COPY src src
COPY view/dist view/dist
# Incremental state is of no use in a build from scratch.
ENV CARGO_PROFILE_RELEASE_INCREMENTAL=false
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target,sharing=locked \
    just install /opt/r1

FROM ${DEBIAN_IMAGE} AS system
# python3 runs the programs of `r1.tools.python`, and reward functions in Python.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libstdc++6 python3 \
    && rm -rf /var/lib/apt/lists/*

FROM system AS torch
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY setup/cuda.sh /setup/
RUN --mount=type=cache,target=/root/.cache/pip /setup/cuda.sh --no-driver /opt/torch

FROM system AS cpu
LABEL org.opencontainers.image.title="r1" \
      org.opencontainers.image.source="https://github.com/r1-rl/r1" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/r1 /opt/r1
# Every user may write to these directories: `docker run --user` selects one that owns the mounts.
RUN useradd --no-create-home --home-dir /home/r1 --uid 1000 r1 \
    && install -d -m 1777 /home/r1 /home/r1/.cache /home/r1/.cache/huggingface \
        /home/r1/.cache/r1 /home/r1/.cache/r1/kernels /work /work/data /work/runs
ENV PATH=/opt/r1/bin:$PATH HOME=/home/r1
WORKDIR /work
COPY scripts scripts
USER 1000:1000
# The build fails here if a library is missing.
RUN r1 --version
ENTRYPOINT ["r1"]
CMD ["--help"]

FROM cpu AS cuda
# With --link the layer of torch (several GB) does not depend on the layers before it.
COPY --link --from=torch /opt/torch /opt/torch
# r1 finds torch by R1_CUDA_TORCH. The directory of torchrun is the last one of PATH, so that
# python3 is Debian's.
ENV R1_CUDA_TORCH=/opt/torch/lib/python3.11/site-packages/torch \
    PATH=$PATH:/opt/torch/bin \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN test -e "$R1_CUDA_TORCH/lib/libtorch_cuda.so"
