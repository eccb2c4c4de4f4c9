#!/usr/bin/env bash
# Reference MCP servers from npm and PyPI for `just test-mcp`, in target/mcp.
set -euo pipefail
cd "$(dirname "$0")/../.."
to=target/mcp
mkdir -p "$to/files"
echo "hello file" > "$to/files/a.txt"
packages=(everything filesystem memory sequential-thinking)
npm install --silent --no-audit --no-fund --prefix "$to/npm" "${packages[@]/#/@modelcontextprotocol/server-}"
[ -d "$to/venv" ] || python3 -m venv "$to/venv"
"$to/venv/bin/pip" install --quiet mcp-server-fetch mcp-server-time mcp-server-git
if [ ! -d "$to/repo/.git" ]; then
    git init --quiet "$to/repo"
    git -C "$to/repo" -c user.name=r1 -c user.email=r1@example.org commit --quiet --allow-empty -m "the first commit"
fi
