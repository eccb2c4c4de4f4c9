#!/usr/bin/env bash
# Installs a built r1 with the libtorch libraries that it loads.
#
#   setup/install.sh BINARY [PREFIX]
# writes PREFIX/bin/r1, PREFIX/lib/r1/*.so and PREFIX/share/man; PREFIX is ~/.cargo by default
#
# The installed program needs neither the repository nor the build cache. PREFIX can be copied as a
# whole, also to another user or machine. LIBTORCH is the libtorch that the binary was built with.
set -euo pipefail

binary=${1:?usage: install.sh BINARY [PREFIX]}
prefix=${2:-${CARGO_HOME:-$HOME/.cargo}}
mkdir -p "$prefix/bin"
if [ "$(uname -s)" = Linux ]; then
  mkdir -p "$prefix/lib/r1"
  # Only the libraries that the loader resolves for the binary.
  LD_LIBRARY_PATH="$LIBTORCH/lib" ldd "$binary" | awk '$2 == "=>" { print $3 }' | while read -r library; do
    case "$library" in "$LIBTORCH/lib/"*)
      target="$prefix/lib/r1/$(basename "$library")"
      cmp -s "$library" "$target" || { cp -L "$library" "$target.part" && mv "$target.part" "$target"; } ;;
    esac
  done
fi
# A running r1 keeps its open file; the new file replaces the name.
install -m 755 "$binary" "$prefix/bin/r1.part"
mv "$prefix/bin/r1.part" "$prefix/bin/r1"
"$prefix/bin/r1" man --dir "$prefix/share/man/man1"
echo "installed $prefix/bin/r1 ($("$prefix/bin/r1" --version | head -n 1))"
case ":$PATH:" in *":$prefix/bin:"*) ;; *) echo "hint: add $prefix/bin to PATH" ;; esac
