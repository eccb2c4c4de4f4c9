return require("recipe")("npm/mcp-server-memory", {}, { scope = "trajectory" })
