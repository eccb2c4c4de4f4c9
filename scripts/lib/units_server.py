"""An MCP server over standard input and output with the tool `convert`, for scripts/mcp.lua. It uses
the standard library only; the protocol is that of modelcontextprotocol.io, version 2025-06-18."""

import json
import sys
from pathlib import Path

FACTORS = {
    "seconds": ("seconds", 1), "minutes": ("seconds", 60), "hours": ("seconds", 3600),
    "days": ("seconds", 86400), "weeks": ("seconds", 604800),
    "inches": ("inches", 1), "feet": ("inches", 12), "yards": ("inches", 36),
}
TOOLS = json.loads((Path(__file__).parent / "units.json").read_text())


def convert(amount, source, target):
    """The converted amount as text, and whether it is an error."""
    kind, factor = FACTORS[source]
    other, divisor = FACTORS[target]
    if kind != other:
        return f"{source} can't be converted to {target}", True
    return f"{round(amount * factor / divisor, 2):g}", False


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params.get("protocolVersion", "2025-06-18"), "capabilities": {"tools": {}},
                "serverInfo": {"name": "units", "version": "1"}}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        given = params["arguments"]
        text, failed = convert(given["amount"], given["from"], given["to"])
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message.get("method"), message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
