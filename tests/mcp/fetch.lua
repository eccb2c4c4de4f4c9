return require("recipe")("venv/mcp-server-fetch")
