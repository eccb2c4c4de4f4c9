return require("recipe")("venv/mcp-server-git", { "--repository", "../../target/mcp/repo" })
