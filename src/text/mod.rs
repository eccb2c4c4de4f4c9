//! Text to ids and back: tokenizer, chat templates (minijinja), tool-call formats.
