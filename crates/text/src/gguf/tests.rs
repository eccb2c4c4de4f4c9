//! Tokenizers of metadata that contradicts itself or is not supported, and random changes.
#![allow(clippy::unwrap_used)]

use serde_json::{Map, Value, json};

use super::tokenizer_files;
use crate::tokenizer::Tokenizer;
use r1_base::error::Kind;

/// A byte-level vocabulary, and one of SentencePiece.
pub(crate) fn metadata(kind: &str) -> Map<String, Value> {
    let fields = if kind == "gpt2" {
        json!({
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "Ġ", "ĠĠ", "ab", "1", "<tool>", "[PAD8]"],
            "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1, 4, 5], "tokenizer.ggml.merges": ["Ġ Ġ", "a b"],
            "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1,
            "tokenizer.chat_template": "{{ messages }}",
        })
    } else {
        json!({
            "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "▁", "a", "b", "▁a", "▁ab", "ab"],
            "tokenizer.ggml.scores": [0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -3.0, -1.0],
            "tokenizer.ggml.token_type": [2, 3, 1, 1, 1, 1, 1, 1], "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
        })
    };
    fields.as_object().unwrap().clone()
}

fn load(metadata: &Map<String, Value>) -> r1_base::error::Result<Tokenizer> {
    Tokenizer::from_files(tokenizer_files(metadata)?, "t".to_owned())
}

#[test]
fn the_pre_tokenizer_of_the_metadata_splits_words() {
    let mut fields = metadata("gpt2");
    let tokenizer = load(&fields).unwrap();
    // Digits are split off first, so that both spaces are one word; GPT-2 leaves one to the digit.
    assert_eq!(tokenizer.encode("ab  1<tool>").unwrap(), [5, 4, 6, 7]);
    assert_eq!(tokenizer.id_of("[PAD8]"), None);
    fields.insert("tokenizer.ggml.pre".to_owned(), json!("gpt-2"));
    assert_eq!(load(&fields).unwrap().encode("ab  1<tool>").unwrap(), [5, 3, 3, 6, 7]);
    fields.insert("tokenizer.ggml.pre".to_owned(), json!("qwen2"));
    let files = tokenizer_files(&fields).unwrap();
    let tokenizer: Value = serde_json::from_slice(&files["tokenizer.json"]).unwrap();
    assert_eq!(tokenizer["normalizer"], json!({"type": "NFC"}));
    // Scores decide: `ab` before `▁a`.
    let tokenizer = load(&metadata("llama")).unwrap();
    assert_eq!(tokenizer.encode("ab a").unwrap(), [6, 5]);
    assert_eq!(tokenizer.encode_with_special("a").unwrap(), [1, 5]);
    let mut fields = metadata("llama");
    fields.insert("tokenizer.ggml.add_bos_token".to_owned(), json!(false));
    fields.insert("tokenizer.ggml.add_space_prefix".to_owned(), json!(false));
    assert_eq!(load(&fields).unwrap().encode_with_special("a").unwrap(), [3]);
    let files = tokenizer_files(&metadata("gpt2")).unwrap();
    let generation: Value = serde_json::from_slice(&files["generation_config.json"]).unwrap();
    assert_eq!(generation["eos_token_id"], json!([0, 1]));
}

#[test]
fn unsupported_tokenizers_are_refused_by_name() {
    for (kind, name, value, why) in [
        ("gpt2", "model", json!("bert"), "the tokenizer is of the kind \"bert\""),
        ("gpt2", "pre", json!("no-such"), "the pre-tokenizer of the metadata is \"no-such\"; supported are llama3"),
        ("gpt2", "tokens", json!(["a", "a"]), "2 tokens and 9 types"),
        ("gpt2", "tokens", json!([1]), "`tokenizer.ggml.tokens` is not a list of texts"),
        ("gpt2", "bos_token_id", json!(9), "`tokenizer.ggml.bos_token_id` is 9, and the vocabulary has 9 tokens"),
        ("gpt2", "merges", Value::Null, "can't read the tokenizer"),
        ("gpt2", "merges", json!(["a c"]), "can't read the tokenizer"),
        ("llama", "scores", json!([0.0]), "the token \"<s>\" has no score and no merges"),
    ] {
        let mut fields = metadata(kind);
        fields.insert(format!("tokenizer.ggml.{name}"), value);
        let error = load(&fields).map(drop).unwrap_err();
        assert!(error.kind == Kind::Model && error.message.contains(why), "{error}");
    }
    let mut fields = metadata("gpt2");
    fields.insert("tokenizer.ggml.token_type".to_owned(), json!([]));
    fields.insert("tokenizer.ggml.tokens".to_owned(), json!(["a", "b", "a"]));
    let error = tokenizer_files(&fields).unwrap_err();
    assert!(
        error.message.contains("the token \"a\" twice") && error.hint.unwrap().contains("tokenizer.json"),
        "{}",
        error.message
    );
    let error = tokenizer_files(&Map::new()).unwrap_err();
    assert_eq!(error.message, "the metadata has no tokenizer");
    // The work of deriving merges is the square of a token's length.
    let mut fields = metadata("llama");
    fields["tokenizer.ggml.tokens"][7] = json!("a".repeat(40_000));
    assert!(tokenizer_files(&fields).unwrap_err().message.contains("too long"));
}

#[test]
fn several_chat_templates_keep_their_names() {
    let mut fields = metadata("gpt2");
    fields.insert("tokenizer.chat_template.tool_use".to_owned(), json!("{{ tools }}"));
    let files = tokenizer_files(&fields).unwrap();
    let config: Value = serde_json::from_slice(&files["tokenizer_config.json"]).unwrap();
    let names: Vec<&Value> = config["chat_template"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["default", "tool_use"]);
}
