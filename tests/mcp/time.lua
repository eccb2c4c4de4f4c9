return require("recipe")("venv/mcp-server-time", { "--local-timezone", "UTC" })
