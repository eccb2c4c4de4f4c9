//! Models in GGUF files: every command that names a model.

use std::path::Path;

use super::recipe::recipe;
use super::run_files::read_json;
use super::{directory, r1, shown};

/// A model of tests/golden/gguf as `model.gguf` in `dir`.
fn with_file(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = directory(files, false);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gguf/llama_tied.gguf");
    std::fs::copy(golden, dir.path().join("tiny.gguf")).unwrap();
    dir
}

/// Runs `r1` with its cache in the directory; returns the exit code and the output.
fn run(dir: &Path, args: &[&str]) -> String {
    shown(dir, &r1(dir, args).env("XDG_CACHE_HOME", dir.join("cache")).output().unwrap())
}

#[test]
fn a_gguf_file_is_trained_and_its_checkpoints_have_hugging_face_layout() {
    let script = recipe(&[("policy", "{ model = 'tiny.gguf', max_context = 64 }")]);
    let dir = with_file(&[("a.lua", &script)]);
    let ok = |args: &[&str]| {
        let text = run(dir.path(), args);
        assert!(text.starts_with("exit: 0"), "{args:?}: {text}");
        text
    };
    ok(&["run", "a.lua", "-q", "trainer.steps=1", "checkpoint.every=1"]);
    let checkpoint = dir.path().join("runs/a/checkpoints/step-000001");
    for name in
        ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    {
        assert!(checkpoint.join(name).is_file(), "{name}");
    }
    assert!(!checkpoint.join("model.gguf").exists());
    assert_eq!(read_json(checkpoint.join("config.json"))["architectures"][0], "LlamaForCausalLM");
    assert!(read_json(checkpoint.join("tokenizer_config.json"))["chat_template"].is_string());
    // The run records the file, not the directory in the cache.
    let origin = &read_json(dir.path().join("runs/a/config.json"))["origins"]["model"];
    assert!(origin["path"].as_str().unwrap().ends_with("tiny.gguf") && origin["dtype"] == "q4_0", "{origin}");
    ok(&["run", "a.lua", "-q", "--resume", "runs/a", "trainer.steps=2"]);
    ok(&["infer", "-m", "runs/a", "-p", "What is 2?", "--max-new-tokens", "2"]);
    ok(&["run", "a.lua", "--plan"]);

    // An adapter names the file as its base.
    ok(&["run", "a.lua", "-q", "--name", "b", "trainer.steps=1", "policy.lora.rank=2", "policy.lora.alpha=4"]);
    let adapter = read_json(dir.path().join("runs/b/checkpoints/step-000001/adapter_config.json"));
    assert!(adapter["base_model_name_or_path"].as_str().unwrap().ends_with("/tiny.gguf"), "{adapter}");
    std::fs::remove_dir_all(dir.path().join("cache")).unwrap();
    ok(&["infer", "-m", "runs/b", "-p", "What is 2?", "--max-new-tokens", "2"]);

    let program = "return r1.model('tiny.gguf'):config().vocab_size";
    assert!(ok(&["lua", "-e", program]).contains("320"));
}

#[test]
fn unreadable_gguf_files_are_refused_with_their_path() {
    let dir = with_file(&[("empty.gguf", ""), ("old.gguf", "GGUF\u{1}\0\0\0")]);
    let whole = std::fs::read(dir.path().join("tiny.gguf")).unwrap();
    std::fs::write(dir.path().join("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    for (name, why) in
        [("empty", "is cut short"), ("old", "has version 1 of the format"), ("cut", "is cut short or damaged")]
    {
        let file = format!("{name}.gguf");
        let text = run(dir.path(), &["infer", "-m", &file, "-p", "x"]);
        assert!(text.starts_with("exit: 5") && text.contains(why) && text.contains(&file), "{text}");
    }
    let text = run(dir.path(), &["infer", "-m", ".", "-p", "x"]);
    assert!(text.contains("the directory has 4 GGUF files"), "{text}");
    let text = run(dir.path(), &["infer", "-m", "smollm2-135m", "-p", "x"]);
    assert!(text.contains("smollm2-135m has not been fetched") && text.contains("just real-model"), "{text}");
}
