return require("recipe") { "CartPole-v1" }
