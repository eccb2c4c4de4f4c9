//! Text to ids and back: tokenizer, chat templates (minijinja), tool-call formats.
//!
//! - [`Tokenizer`]: Hugging Face's `tokenizer.json`; [`train_tokenizer`] makes a small one from raw text
//! - `template`: chat templates as transformers renders them; `filters` and `python` are Python's ways in them
//! - `format`: how a policy writes calls ([`Format`]), one file per format in `formats`, `own` for those of recipes;
//!   [`Stream`] reads replies piece by piece
//! - [`schema`]: what a call's arguments must be
//! - `turns`: what a template prints between two messages, learnt once, so that a conversation grows by its new text only
//! - [`Renderer`]: messages to prompt ids, replies to calls, and conversations extended token in / token out
//! - `supervised`: conversations to ids and a loss mask, in the same pieces as rollouts

#[cfg(test)]
mod conversations;
mod dialect;
mod filters;
mod format;
mod formats;
#[cfg(test)]
mod fuzz;
mod pieces;
mod python;
#[cfg(test)]
mod recorded;
mod renderer;
mod room;
pub mod schema;
mod stream;
mod style;
#[cfg(test)]
mod styles;
mod supervised;
mod template;
#[cfg(test)]
mod testing;
mod tokenizer;
mod train;
mod turns;

pub(crate) use dialect::TimeLimit;
pub use format::{AUTO, CODE_TOOL, Format, Reply};
pub use formats::own::{OwnFormat, OwnOptions, read_with};
pub use renderer::{Extension, Renderer};
pub use stream::{Event, Stream};
pub use style::{FormatChoice, Style};
pub use supervised::Supervised;
pub use template::Template;
pub use tokenizer::Tokenizer;
pub use train::{TEMPLATE as CHATML_TEMPLATE, train_tokenizer};
