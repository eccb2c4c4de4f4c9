return require("recipe")("npm/mcp-server-filesystem", { "../../target/mcp/files" })
