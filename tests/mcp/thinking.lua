return require("recipe")("npm/mcp-server-sequential-thinking", {}, { scope = "trajectory" })
