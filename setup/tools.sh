#!/usr/bin/env bash
# Says which of the tools that `just test` needs are missing.
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
