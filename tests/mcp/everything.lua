return require("recipe")("npm/mcp-server-everything", { "stdio" }, { timeout = 5 })
