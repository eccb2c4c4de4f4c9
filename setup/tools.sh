#!/usr/bin/env bash
# Installs the cargo tools that `just test` needs and that are missing.
set -euo pipefail

command -v cargo >/dev/null || {
  echo "error: cargo is missing" >&2
  echo "  hint: install a Rust toolchain (1.91 or newer), for example with rustup" >&2
  exit 1
}
command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || {
  echo "error: no C++ compiler found" >&2
  echo "  hint: install one (Debian: apt-get install g++; macOS: xcode-select --install)" >&2
  exit 1
}
cargo nextest --version >/dev/null 2>&1 || cargo install cargo-nextest --locked
