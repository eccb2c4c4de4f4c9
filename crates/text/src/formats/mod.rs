//! The tool-call formats, one file each: a [`ToolFormat`], with its parser
//! ([`FormatParser`](super::stream::FormatParser)) and writer.
//! A new format is such a file, its line `mod`, a line in [`ALL`], and its name in `env.format`.
//! `json` and [`literal`](super::literal) hold shared parsers; `native` and `same_turn` are the two
//! ways in which results are returned; `code_block` is shared by formats that run code, `shared` by
//! most; `own` is for formats defined by a recipe.

mod answer;
pub(super) mod code_block;
mod deepseek;
mod harmony;
pub(super) mod hermes;
mod json;
mod llama;
mod mistral;
pub(super) mod native;
pub(super) mod own;
mod pythonic;
mod qwen_coder;
mod retool;
pub(super) mod same_turn;
pub(super) mod shared;
mod tir;

use super::tool_format::ToolFormat;

/// The built-in formats. `auto` is the first whose [`ToolFormat::fits`] accepts the chat template,
/// so formats with distinctive tokens come first.
pub(super) const ALL: &[&ToolFormat] = &[
    &harmony::FORMAT,
    &mistral::FORMAT,
    &deepseek::V3,
    &deepseek::V31,
    &qwen_coder::FORMAT,
    &hermes::FORMAT,
    &pythonic::FORMAT,
    &llama::FORMAT,
    &retool::FORMAT,
    &tir::FORMAT,
    &answer::FORMAT,
];
