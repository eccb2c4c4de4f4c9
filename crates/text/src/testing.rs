//! Shared by the tests of this module: a small tokenizer, and the paths of recorded data.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::{Format, FormatChoice, Renderer, Reply, Template, Tokenizer, train_tokenizer};
use crate::reference_data::reference_data;

/// A few hundred words to learn merges from.
pub(super) fn corpus() -> impl Iterator<Item = String> {
    const WORDS: &str = "question answer think number total apples each price wrote because therefore python print \
        result value while return import function string length between before after remaining altogether";
    (0..60).map(|n| {
        let word = |at: usize| WORDS.split_whitespace().nth((n * 7 + at * 5) % 27).unwrap_or_default();
        format!(
            "Question {n}: what is the {} of the {}?\nthe answer is {}. {}({}, {}) # the {}\n\n",
            word(0),
            word(1),
            n * 8,
            word(2),
            word(3),
            word(4),
            word(5),
        )
    })
}

/// A tokenizer with the tokens of both formats.
pub(super) fn small_tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let extra = ["<code>", "</code>", "<interpreter>", "</interpreter>", "<tool_call>", "</tool_call>"];
        train_tokenizer(corpus(), 360, &extra.map(str::to_owned)).unwrap()
    })
}

/// A renderer with the small tokenizer and its own ChatML template.
pub(super) fn renderer(format: &str) -> Renderer {
    renderer_of(self::format(format))
}

/// The same with any format.
pub(super) fn renderer_of(format: Format) -> Renderer {
    let dir = tempfile::tempdir().unwrap();
    small_tokenizer().save(dir.path()).unwrap();
    Renderer::load(dir.path(), "hermes").unwrap().with_format(&FormatChoice::Is(format)).unwrap()
}

/// A built-in format.
pub(super) fn format(name: &str) -> Format {
    Format::from_name(name).unwrap()
}

/// A reply parsed with a built-in format.
pub(super) fn read(name: &str, text: &str, begun: bool, tools: &[Value]) -> Reply {
    format(name).read(text, begun, "python", tools).unwrap()
}

/// Ids as text, with « » around those in the mask.
pub(super) fn show(renderer: &Renderer, ids: &[u32], mask: &[bool]) -> String {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < ids.len() {
        let run = mask[at..].iter().take_while(|sampled| **sampled == mask[at]).count();
        let text = renderer.tokenizer().decode(&ids[at..at + run], false);
        runs.push(if mask[at] { format!("«{text}»") } else { text });
        at += run;
    }
    runs.concat()
}

/// The file of a model's template: in tests/golden/text, or in the reference data.
fn template_file(name: &str) -> PathBuf {
    let file = format!("templates/{name}.jinja");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/text").join(&file);
    if path.exists() { path } else { reference_data("chat-templates").join(file) }
}

/// A model's template with the small tokenizer.
pub(super) fn real(name: &str, format: &str) -> Renderer {
    with_template(&std::fs::read_to_string(template_file(name)).unwrap(), name, format)
}

/// A model's template with a tokenizer that has its special tokens.
pub(super) fn real_with(name: &str, format: &str, eos: &str, tokens: &[&str]) -> Renderer {
    let path = template_file(name);
    let extra: Vec<String> = tokens.iter().chain([&eos]).map(|&token| token.to_owned()).collect();
    let files = tempfile::tempdir().unwrap();
    train_tokenizer(corpus(), 360 + extra.len(), &extra).unwrap().save(files.path()).unwrap();
    let template = Template::new(&std::fs::read_to_string(path).unwrap(), None, name, "", eos).unwrap();
    Renderer::with_template(Arc::new(Tokenizer::load(files.path()).unwrap()), template, self::format(format)).unwrap()
}

/// A template with the small tokenizer.
pub(super) fn with_template(source: &str, name: &str, format: &str) -> Renderer {
    let template = Template::new(source, None, name, "", "<|im_end|>").unwrap();
    let files = tempfile::tempdir().unwrap();
    small_tokenizer().save(files.path()).unwrap();
    Renderer::with_template(Arc::new(Tokenizer::load(files.path()).unwrap()), template, self::format(format)).unwrap()
}
