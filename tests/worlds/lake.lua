return require("recipe") { "FrozenLake-v1", kwargs = { render_mode = "ansi", is_slippery = false } }
