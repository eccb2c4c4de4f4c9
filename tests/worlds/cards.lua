return require("recipe") { "Blackjack-v1" }
