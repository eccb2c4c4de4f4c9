//! Tokens and templates of GGUF files (tests/golden/gguf), and the names of files.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{gguf_directory, gguf_file, is_part, source_of};
use crate::load::{MODEL_SMOLLM2, local_model_dir};
use crate::text::{Renderer, Template, Tokenizer};

#[test]
fn tokens_and_templates_equal_those_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf");
    let golden: Value = serde_json::from_slice(&fs::read(folder.join("golden.json")).unwrap()).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let path = folder.join(format!("{name}.gguf"));
        let dir = gguf_directory(&path).unwrap();
        assert_eq!(source_of(&dir), path.canonicalize().unwrap());
        let tokenizer = Tokenizer::load(&dir).unwrap();
        for (text, ids) in golden["texts"].as_array().unwrap().iter().zip(case["ids"].as_array().unwrap()) {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
            let text = text.as_str().unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            // A space that SentencePiece adds in front is not part of the decoded text.
            assert_eq!(tokenizer.decode(&ids, false).trim_start(), text.trim_start(), "{name}");
        }
        let around: Vec<u32> = serde_json::from_value(case["around"].clone()).unwrap();
        assert_eq!(tokenizer.encode_with_special(golden["texts"][0].as_str().unwrap()).unwrap(), around, "{name}");
        let template = Template::of(&tokenizer).unwrap();
        let rendered = template.render(&case["messages"], None, true).unwrap();
        assert_eq!(rendered, case["rendered"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn a_directory_names_its_only_gguf_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        fs::write(dir.path().join(name), "").unwrap();
        dir.path().join(name)
    };
    assert_eq!(gguf_file(dir.path()).unwrap(), None);
    let one = file("a-Q8_0.gguf");
    file("config.json");
    assert_eq!(gguf_file(dir.path()).unwrap(), Some(one.clone()));
    assert_eq!(gguf_file(&one).unwrap(), Some(one.clone()));
    file("b.gguf");
    assert!(gguf_file(dir.path()).unwrap_err().message.contains("2 GGUF files"));
    // The weights in safetensors come first.
    file("model.safetensors");
    assert_eq!(gguf_file(dir.path()).unwrap(), None);
    assert!(is_part("a-00001-of-00003") && !is_part("a-Q4_K_M") && !is_part("00001-of-00003"));
    let part = file("a-00001-of-00002.gguf");
    assert!(gguf_directory(&part).unwrap_err().message.contains("one of several parts"));
}

/// `smollm2-135m`, as `just real-model` has fetched it.
#[test]
#[ignore = "needs SmolLM2-135M-Instruct: just test-real"]
fn real_model_tokens_templates_and_tool_calls() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/real/golden.json");
    let golden: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let dir = local_model_dir(MODEL_SMOLLM2).unwrap();
    assert_eq!(source_of(&dir), Path::new(&std::env::var("R1_REAL_MODEL").unwrap()).canonicalize().unwrap());
    let renderer = Renderer::load(&dir, "hermes").unwrap();
    for text in golden["texts"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(text["ids"].clone()).unwrap();
        let text = text["text"].as_str().unwrap();
        assert_eq!(renderer.tokenizer().encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(renderer.tokenizer().decode(&ids, false), text);
    }
    for conversation in golden["conversations"].as_array().unwrap() {
        let rendered = renderer.template().render(&conversation["messages"], None, true).unwrap();
        assert_eq!(rendered, conversation["rendered"].as_str().unwrap());
    }
    // The end of a reply is <|im_end|>.
    assert_eq!(*renderer.stop_ids(), [2]);
    let call =
        "I compute.\n<tool_call>\n{\"name\": \"python\", \"arguments\": {\"code\": \"print(12  * 34)\"}}\n</tool_call>";
    let ids = renderer.tokenizer().encode(call).unwrap();
    let reply = renderer.parse(&renderer.tokenizer().decode(&ids, true), &[]).unwrap();
    assert_eq!((reply.tool_calls.len(), &reply.tool_calls[0].arguments["code"]), (1, &Value::from("print(12  * 34)")));
}
