#![allow(clippy::unwrap_used)]
use super::*;
use crate::reference_data::reference_data;
use crate::testing::small_tokenizer;

#[test]
fn decoding_encoded_text_returns_the_text() {
    let tokenizer = small_tokenizer();
    for text in [
        "",
        "Hello, world!\n\n  x = [1, 23];\t\r\n",
        "日本語 é é 👋🏽\u{0}\u{7f}\u{a0}",
        "<|im_start|>user\n<code>a</code><|im_end|>",
        "< |im_end|> <code",
    ] {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
}

#[test]
fn malicious_tokenizer_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    small_tokenizer().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer.json");
    let original: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut changed = original.clone();
        change(&mut changed);
        std::fs::write(&path, changed.to_string()).unwrap();
        let error = Tokenizer::load(dir.path()).err().unwrap();
        assert!(error.place.unwrap().ends_with("tokenizer.json"));
        error.message
    };
    let twice = serde_json::json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let bomb = refused(&|json| {
        json["normalizer"] = serde_json::json!({"type": "Sequence", "normalizers": vec![twice.clone(); 20]});
    });
    assert!(bomb.ends_with("its normalizer may make a text 1048576 times longer; at most 64 is read"), "{bomb}");
    for pattern in [serde_json::json!({"String": ""}), serde_json::json!({"Regex": ""})] {
        let empty = refused(&|json| {
            json["normalizer"] = serde_json::json!({"type": "Replace", "pattern": pattern, "content": "x"});
        });
        assert!(empty.ends_with("its normalizer has an empty pattern"), "{empty}");
    }
    let strips = refused(&|json| {
        let strip = serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": 1});
        json["decoder"] = serde_json::json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]});
    });
    assert!(strips.contains("its decoder strips the end of tokens"), "{strips}");
    let far = refused(&|json| json["model"]["vocab"]["a"] = 4_000_000_000_u32.into());
    assert!(far.contains("one of them has the id 4000000000"), "{far}");
    let cut = refused(&|json| json["model"]["merges"] = serde_json::json!([["no", "such"]]));
    assert!(cut.starts_with("can't read the tokenizer"), "{cut}");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(Tokenizer::load(dir.path()).err().unwrap().message.contains("not a regular file"));
}

#[test]
fn added_tokens_have_one_id_and_only_special_ones_are_skipped() {
    let tokenizer = small_tokenizer();
    let ids = tokenizer.encode("<|im_start|><code>1</code><|im_end|>").unwrap();
    let spelled: Vec<String> = ids.iter().map(|&id| tokenizer.decode(&[id], false)).collect();
    assert_eq!(spelled, ["<|im_start|>", "<code>", "1", "</code>", "<|im_end|>"]);
    assert_eq!(tokenizer.decode(&ids, true), "<code>1</code>");
    assert_eq!(tokenizer.id_of("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.id_of("no such token"), None);
}

#[test]
fn token_bytes_concatenate_to_the_text() {
    let tokenizer = small_tokenizer();
    let bytes = tokenizer.token_bytes();
    assert_eq!(bytes.len(), tokenizer.vocab_size());
    assert!(bytes.iter().all(|bytes| !bytes.is_empty()));
    proptest::proptest!(|(text in "(\\PC|[ \\n\\t\\x00-\\x7f]|<code>|</code>|<\\|im_end\\|>|é|👋🏽){0,40}")| {
        let ids = tokenizer.encode(&text).unwrap();
        let joined: Vec<u8> = ids.iter().flat_map(|&id| bytes[id as usize].clone()).collect();
        proptest::prop_assert_eq!(String::from_utf8(joined).unwrap(), text);
    });
}

#[test]
fn sentencepiece_tokens_decode_to_spaces_and_bytes() {
    let spelling = Spelling::SentencePiece;
    assert_eq!(spelling.bytes("<0x0A>"), b"\n");
    assert_eq!(spelling.bytes("<0xE2>"), [0xE2]);
    assert_eq!(spelling.bytes("\u{2581}a"), b" a");
    assert_eq!(spelling.bytes("<0xZZ>"), b"<0xZZ>");
}

#[test]
fn tokenizer_files_are_saved_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = small_tokenizer();
    tokenizer.save(dir.path()).unwrap();
    let again = Tokenizer::load(dir.path()).unwrap();
    assert_eq!(again.files, tokenizer.files);
    let text = "Same ids 123 <code>";
    assert_eq!(again.encode(text).unwrap(), tokenizer.encode(text).unwrap());
    std::fs::write(dir.path().join("tokenizer_config.json"), "{\"eos_token\": ").unwrap();
    let error = Tokenizer::load(dir.path()).err().unwrap();
    assert_eq!(error.kind, Kind::Model);
    assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let error = Tokenizer::load(dir.path()).err().unwrap();
    assert!(error.to_string().starts_with("there is no tokenizer.json"), "{error}");
}

/// Texts with their ids from Qwen's tokenizer, computed with tiktoken and with transformers.
#[test]
#[ignore = "needs the reference data: just test-data"]
fn real_tokenizers_agree_with_recorded_ids() {
    let dir = reference_data("tokenizers-configs");
    let tokenizer = Tokenizer::load(&dir.join("qwen3")).unwrap();
    let bytes = tokenizer.token_bytes();
    let mut checked = 0;
    for line in std::fs::read_to_string(dir.join("token_goldens.jsonl")).unwrap().lines().step_by(3) {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = row["text"].as_str().unwrap();
        let with_added = row.get("qwen3_with_added_tokens").filter(|ids| !ids.is_null());
        let expected: Vec<u32> = serde_json::from_value(with_added.unwrap_or(&row["qwen_plain"]).clone()).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        let joined: Vec<u8> = expected.iter().flat_map(|&id| bytes[id as usize].clone()).collect();
        assert_eq!(String::from_utf8_lossy(&joined), tokenizer.decode(&expected, false));
        checked += 1;
    }
    assert!(checked > 100, "{checked}");
}
