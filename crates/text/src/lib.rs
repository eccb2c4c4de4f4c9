//! Text to ids and back: tokenizer, chat templates (minijinja), tool-call formats.
//!
//! - [`Tokenizer`]: Hugging Face's `tokenizer.json`; [`train_tokenizer()`] trains a small one on
//!   raw text, [`tokenizer_files()`] makes one from the metadata of a GGUF file
//! - `template`: chat templates rendered as in transformers; `jinja`, `filters` and `python`
//!   adapt minijinja to Jinja2
//! - `format`: tool-call formats ([`Format`]), one file each in `formats`, recipes' own in `own`;
//!   [`ReplyStream`] parses replies while they are sampled
//! - [`schema`]: validation of a call's arguments
//! - `turns`: what a template prints between two messages, learned once, so that a conversation is
//!   extended by its new text only
//! - [`Renderer`]: messages to prompt ids, replies to calls, conversations extended token in /
//!   token out
//! - `supervised`: conversations to ids and a loss mask, in the same pieces as rollouts

mod arithmetic;
mod chat;
#[cfg(test)]
mod conversations;
mod describe;
mod extend;
mod filters;
mod format;
mod formats;
#[cfg(test)]
mod fuzz;
mod gguf;
mod image_marks;
mod images;
mod jinja;
mod literal;
mod malformed;
mod mark_text;
mod marks;
mod methods;
mod numbers;
mod operators;
mod pieces;
mod python;
#[cfg(test)]
mod recorded;
#[cfg(test)]
#[path = "../../../src/reference_data.rs"]
mod reference_data;
mod renderer;
pub mod schema;
mod schema_error;
pub mod schema_order;
mod schema_pattern;
mod size_limits;
mod stream;
mod style;
#[cfg(test)]
mod styles;
mod supervised;
mod template;
#[cfg(test)]
mod testing;
mod time_limit;
mod tokenizer;
mod tokenizer_images;
mod tool_format;
mod train_tokenizer;
mod turns;
mod values;

pub use chat::{EarlierCall, chat_messages};
pub use extend::Extension;
pub use format::{AUTO, CODE_TOOL, Format};
pub use formats::own::{OwnFormat, OwnOptions, read_with};
pub use gguf::tokenizer_files;
pub use malformed::{Malformed, ReplyError};
pub use pieces::Pieces;
pub use renderer::Renderer;
pub use stream::{Event, ReplyStream};
pub use style::{FormatChoice, Style};
pub use supervised::Supervised;
pub use template::Template;
pub use time_limit::TimeLimit;
pub use tokenizer::{Tokenizer, named_templates};
pub use tool_format::Reply;
pub use train_tokenizer::{TEMPLATE as CHATML_TEMPLATE, train_tokenizer};

/// The examples of the page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
