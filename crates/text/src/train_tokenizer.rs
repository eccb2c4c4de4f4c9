//! Trains a small tokenizer: byte-level BPE on the recipe's own text, in the layout of Qwen's
//! tokenizers.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::Tokenizer;
use r1_base::error::{Error, Kind, Result};

/// Words, single digits, runs of punctuation, line breaks: Qwen's split. Every digit is its own
/// piece, so that the tokens of a number do not depend on the merges of the corpus.
const SPLIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// ChatML's tokens, ids 0, 1 and 2.
pub(super) const CHATML: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The chat template saved with a trained tokenizer.
pub const TEMPLATE: &str = include_str!("chatml.jinja");

/// Trains a byte-level BPE tokenizer with at most `vocab_size` tokens (fewer if the text has no
/// more pairs). The same texts give the same tokenizer. ChatML's tokens come first, then one id for
/// each of `special_tokens`, which stay in decoded text, as `<tool_call>` does in Qwen's
/// tokenizers. There is no normalization: decoding an encoded text returns the text.
pub fn train_tokenizer(
    texts: impl Iterator<Item = String>,
    vocab_size: usize,
    special_tokens: &[String],
) -> Result<Tokenizer> {
    let failed = |error: tokenizers::Error| Error::new(Kind::Model, format!("can't train the tokenizer: {error}"));
    let mut seen: HashSet<&str> = CHATML.into();
    let extra: Vec<&str> = special_tokens.iter().map(String::as_str).filter(|token| seen.insert(token)).collect();
    if extra.iter().any(|token| token.is_empty()) {
        return Err(Error::new(Kind::Usage, "a special token is empty"));
    }
    let smallest = 256 + CHATML.len() + extra.len();
    if vocab_size < smallest {
        return Err(Error::new(Kind::Usage, format!("a vocabulary of {vocab_size} tokens is too small"))
            .hint(format!("256 bytes and {} special tokens need at least {smallest}", smallest - 256)));
    }
    // Not `normalized`: added tokens are matched in the raw text, as transformers saves them.
    let added: Vec<AddedToken> = CHATML
        .iter()
        .map(|token| AddedToken::from(*token, true))
        .chain(extra.iter().map(|token| AddedToken::from(*token, false).normalized(false)))
        .collect();
    let split =
        Split::new(SplitPattern::Regex(SPLIT.to_owned()), SplitDelimiterBehavior::Isolated, false).map_err(failed)?;
    let bytes = ByteLevel::new(false, false, false);
    let mut trainer: TrainerWrapper = BpeTrainerBuilder::new()
        .vocab_size(vocab_size)
        .special_tokens(added.clone())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build()
        .into();
    let mut inner = tokenizers::Tokenizer::new(BPE::default());
    inner
        .with_pre_tokenizer(Some(Sequence::new(vec![
            PreTokenizerWrapper::Split(split),
            PreTokenizerWrapper::ByteLevel(bytes),
        ])))
        .with_post_processor(Some(bytes))
        .with_decoder(Some(bytes));
    let texts: Vec<String> = texts.collect();
    inner.train(&mut trainer, texts.into_iter()).map_err(failed)?;

    let json = inner.to_string(true).map_err(failed)?;
    let files = BTreeMap::from([
        ("tokenizer.json".to_owned(), json.into_bytes()),
        ("tokenizer_config.json".to_owned(), pretty(&config(&inner, &added))),
        ("generation_config.json".to_owned(), pretty(&generation_config(&inner))),
    ]);
    Tokenizer::from_files(files, "the trained tokenizer".to_owned())
}

/// tokenizer_config.json, as `PreTrainedTokenizerFast` reads it.
fn config(inner: &tokenizers::Tokenizer, added: &[AddedToken]) -> Value {
    let decoder: Map<String, Value> = added
        .iter()
        .filter_map(|token| {
            let entry = json!({
                "content": token.content, "lstrip": false, "normalized": false, "rstrip": false,
                "single_word": false, "special": token.special,
            });
            Some((inner.token_to_id(&token.content)?.to_string(), entry))
        })
        .collect();
    json!({
        "add_prefix_space": false,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": [CHATML[1], CHATML[2]],
        "bos_token": null,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": false,
        "eos_token": CHATML[2],
        "model_max_length": 1_000_000,
        "pad_token": CHATML[0],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": null,
    })
}

/// generation_config.json: a reply ends at the end of a turn or of a text.
fn generation_config(inner: &tokenizers::Tokenizer) -> Value {
    json!({
        "eos_token_id": [inner.token_to_id(CHATML[2]), inner.token_to_id(CHATML[0])],
        "pad_token_id": inner.token_to_id(CHATML[0]),
    })
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::{corpus, small_tokenizer};

    #[test]
    fn the_same_text_gives_the_same_tokenizer() {
        let extra = ["<code>".to_owned(), "</code>".to_owned()];
        let train = || train_tokenizer(corpus(), 400, &extra).unwrap();
        let (a, b) = (train(), train());
        assert_eq!(a.file("tokenizer.json"), b.file("tokenizer.json"));
        assert_eq!(a.vocab_size(), 400);
    }

    #[test]
    fn digits_are_single_tokens_and_merges_are_learned() {
        let tokenizer = small_tokenizer();
        let pieces = |text: &str| -> Vec<String> {
            tokenizer.encode(text).unwrap().iter().map(|&id| tokenizer.decode(&[id], false)).collect()
        };
        assert_eq!(pieces("12345"), ["1", "2", "3", "4", "5"]);
        assert!(pieces(" the answer").len() < " the answer".len() / 2);
        assert!(tokenizer.token_bytes().iter().all(|bytes| bytes.iter().filter(|b| b.is_ascii_digit()).count() <= 1));
    }

    #[test]
    fn a_vocabulary_that_is_too_small_is_refused() {
        let error = train_tokenizer(corpus(), 100, &["<code>".to_owned()]).err().unwrap();
        assert_eq!(error.hint.as_deref(), Some("256 bytes and 4 special tokens need at least 260"));
    }
}
