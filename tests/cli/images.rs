//! Policies that read images: training, resume, replay, chat and bad files.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::infer::{bodies, delta, finish, serving, streamed};
use super::{directory, printed, r1, shown, succeed};

pub(crate) fn script() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/visual_grid.lua").display().to_string()
}

/// The picture world with a smaller cold start.
pub(crate) fn grid(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    let script = script();
    let small = [
        "run",
        &script,
        "policy.init.tokenizer_rows=20",
        "-q",
        "--name",
        name,
        "cold_start.trainer.steps=3",
        "cold_start.trainer.batch_size=4",
        "trainer.group_size=4",
        "trainer.groups_per_step=4",
        "checkpoint.every=1",
        "checkpoint.keep=0",
        "eval.limit=4",
        "rollout.retries=0",
    ];
    succeed(dir, &[&small[..], more].concat());
    dir.join("runs").join(name)
}

pub(crate) fn weights(run: &Path, step: u64) -> Vec<u8> {
    fs::read(run.join(format!("checkpoints/step-{step:06}/model.safetensors"))).unwrap()
}

/// The numbers of the stored images, which their names begin with.
pub(crate) fn stored(run: &Path) -> Vec<usize> {
    let names = fs::read_dir(run.join("images")).unwrap().map(|entry| entry.unwrap().file_name());
    let number = |name: std::ffi::OsString| name.to_str().unwrap().split_once('-').unwrap().0.parse().unwrap();
    let mut numbers: Vec<usize> = names.map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_with_pictures_resumes_to_the_same_weights_and_is_replayed() {
    let dir = directory(&[], false);
    let dir = dir.path();
    let whole = grid(dir, "whole", &["trainer.steps=3"]);
    let images = stored(&whole);
    assert!(images.len() > 8 && images.iter().copied().eq(0..images.len()), "{images:?}");
    // Another number of trajectories at a time numbers images in another order.
    let other = grid(dir, "other", &["trainer.steps=3", "rollout.concurrency=3", "rollout.workers=1"]);
    assert!(weights(&whole, 3) == weights(&other, 3), "the weights depend on the batch of the sampler");

    let halted = grid(dir, "halted", &["trainer.steps=2"]);
    let before = stored(&halted).len();
    succeed(dir, &["run", &script(), "--resume", "halted", "-q", "trainer.steps=3"]);
    assert!(weights(&whole, 3) == weights(&halted, 3), "the resumed run has other weights");
    let after = stored(&halted);
    assert!(after.len() > before && after.iter().copied().eq(0..after.len()), "{after:?}");

    let same = "48 trajectories: every observation, reward and status as recorded";
    for run in ["whole", "halted"] {
        let output = printed(dir, &["replay", run, "-q"]);
        assert!(output.ends_with(same), "{output}");
        succeed(dir, &["traj", "verify", run]);
    }
    // A picture that is damaged is reported with its file.
    let first = fs::read_dir(halted.join("images")).unwrap().next().unwrap().unwrap().path();
    fs::write(&first, "nothing").unwrap();
    let output = printed(dir, &["replay", "halted", "-q"]);
    assert!(output.contains("the stored images of the run are damaged, or one is missing"), "{output}");
}

#[test]
fn a_chat_shows_images_and_refuses_what_is_no_image() {
    let dir =
        directory(&[("notes.png", "just text"), ("drawing.svg", "<svg xmlns='x'></svg>"), ("empty.png", "")], true);
    let dir = dir.path();
    let run = grid(dir, "a", &["trainer.steps=1"]);
    let image = fs::read_dir(run.join("images")).unwrap().next().unwrap().unwrap().path();
    fs::copy(image, dir.join("board.png")).unwrap();
    let chat = |model: &str, file: &str| {
        let args = ["infer", "--model", model, "--plain", "--image", file, "-p", "Where?", "-q"];
        printed(dir, &args)
    };
    let model = "runs/a/checkpoints/step-000001";
    let answer = chat(model, "board.png");
    assert!(answer.starts_with("exit: 0"), "{answer}");
    for (file, message) in [
        ("notes.png", "this is text, not an image"),
        ("drawing.svg", "this is an SVG drawing, not an image"),
        ("empty.png", "the image file is empty"),
        ("missing.png", "can't read the image"),
    ] {
        let refused = chat(model, file);
        assert!(refused.contains(message) && refused.contains(file), "{refused}");
    }
    let refused = chat("model", "board.png");
    assert!(refused.contains("the image can't be shown: the model reads text only"), "{refused}");
    // A model without the files of its processor.
    fs::create_dir(dir.join("bare")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(dir.join(model).join(name), dir.join("bare").join(name)).unwrap();
    }
    let refused = chat("bare", "board.png");
    assert!(refused.contains("the model reads images, and has no preprocessor_config.json"), "{refused}");
}

#[test]
fn images_in_a_script_are_checked() {
    let recipe = |body: &str| {
        format!(
            "return r1.recipe {{ policy = {{ model = 'model' }}, \
             data = {{ train = {{ {{ prompt = 'x' }} }} }}, \
             env = r1.env {{ reset = function(task) {body} end, step = function() return {{ done = true }} end }}, \
             trainer = r1.grpo {{ steps = 1 }} }}"
        )
    };
    let at_top = "local image = r1.image { bytes = 'x' }\nreturn r1.recipe {}".to_owned();
    let text_model = recipe("return { messages = { { role = 'user', content = { r1.image { bytes = 'x' } } } } }");
    let dir = directory(&[("top.lua", &at_top), ("text.lua", &text_model)], true);
    let output = printed(dir.path(), &["check", "top.lua"]);
    assert!(output.contains("r1.image: external calls are not allowed while a recipe is loaded"), "{output}");
    let output = printed(dir.path(), &["check", "text.lua"]);
    assert!(output.contains("r1.image: the policy reads text only; use a vision model"), "{output}");
}

/// The body of the request has the file of the image, in the form of each API.
#[test]
fn servers_get_images_as_their_apis_want_them() {
    let dir = directory(&[], false);
    let script = script();
    let server = serving(|_, _| streamed(&[delta(&json!({ "content": "up" })), finish("stop")]));
    let base = format!("policy.api_base={}/v1", server.url);
    let args = ["eval", &script, &base, "policy.model=m", "policy.init=null", "cold_start=false", "-q", "eval.limit=2"];
    let output = r1(dir.path(), &[&args[..], &["--name", "e"]].concat()).env("NO_PROXY", "127.0.0.1").output().unwrap();
    let text = shown(dir.path(), &output);
    assert!(output.status.success(), "{text}");
    let bodies = bodies(&server);
    let content = &bodies[0]["messages"][0]["content"][0];
    assert_eq!(content["type"], "image_url");
    let url = content["image_url"]["url"].as_str().unwrap();
    assert!(url.starts_with("data:image/png;base64,iVBOR"), "{url}");
    assert!(!stored(&dir.path().join("runs/e")).is_empty());
    let output = printed(dir.path(), &["replay", "e", "eval-0-0-0", "-q"]);
    assert!(output.contains("as recorded"), "{output}");
}

#[test]
fn anthropics_api_gets_images_as_blocks() {
    let dir = directory(&[], false);
    let script = script();
    let server = serving(|_, _| {
        let delta = json!({ "type": "text_delta", "text": "up" });
        streamed(&[
            json!({ "type": "message_start", "message": { "usage": { "input_tokens": 20, "output_tokens": 1 } } }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 1 } }),
            json!({ "type": "message_stop" }),
        ])
    });
    let base = format!("policy.api_base={}/v1", server.url);
    let args = ["eval", &script, &base, "policy.api=anthropic", "policy.model=m", "policy.init=null"];
    let args = [&args[..], &["cold_start=false", "-q", "eval.limit=1", "--name", "e"]].concat();
    let output = r1(dir.path(), &args).env("NO_PROXY", "127.0.0.1").output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let bodies = bodies(&server);
    let block = &bodies[0]["messages"][0]["content"][0];
    assert_eq!(block["type"], "image");
    assert_eq!((&block["source"]["type"], &block["source"]["media_type"]), (&json!("base64"), &json!("image/png")));
    assert!(block["source"]["data"].as_str().unwrap().starts_with("iVBOR"), "{block}");
}

/// A dataset as published: its figures are bytes in Parquet, and have marks in the text.
#[test]
fn geometry3k_is_read_as_published_and_as_prepared_for_verl() {
    let dir = directory(&[], false);
    let dir = dir.path();
    let run = grid(dir, "a", &["trainer.steps=1"]);
    let image = fs::read(fs::read_dir(run.join("images")).unwrap().next().unwrap().unwrap().path()).unwrap();
    let figure = json!({ "bytes": { "$r1": "bytes", "value": BASE64_STANDARD.encode(&image) }, "path": "1.png" });
    let published = json!({ "images": [figure], "problem": "<image>Find x.", "answer": "2 \\sqrt { 3 }" });
    let prompt = json!([{ "role": "user", "content": "<image>Find x." }]);
    let verl = json!({
        "data_source": "hiyouga/geometry3k", "images": [figure], "prompt": prompt,
        "reward_model": { "style": "rule", "ground_truth": "3" }, "extra_info": { "index": 0, "split": "train" },
    });
    let model = "policy.model=runs/a/checkpoints/step-000001";
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/geometry3k.lua").display().to_string();
    for (name, row) in [("published", published), ("verl", verl)] {
        fs::write(dir.join(format!("{name}.jsonl")), format!("{row}\n")).unwrap();
        let (rows, file) = (format!("{name}.jsonl"), format!("{name}.parquet"));
        succeed(dir, &["data", "dedup", &rows, "--out", &file]);
        let data = [format!("data.train.path={file}"), format!("data.eval.path={file}")];
        let columns = ["data.train.columns.images=images", "data.eval.columns.images=images"];
        let args = ["eval", &recipe, model, "policy.init=null", "cold_start=false", "-q", "--name", name];
        let data = data.iter().map(String::as_str);
        let args: Vec<&str> = args.into_iter().chain(data).chain(columns).collect();
        succeed(dir, &args);
        let shown = printed(dir, &["traj", "show", name, "eval-0-0-0", "--json"]);
        let trajectory: serde_json::Value =
            serde_json::from_str(shown.lines().find(|line| line.starts_with('{')).unwrap_or_default())
                .unwrap_or_else(|error| panic!("{error}: {shown}"));
        let content = &trajectory["messages"][0]["content"];
        assert_eq!((&content[0]["type"], &content[1]["text"]), (&json!("image"), &json!("Find x.")), "{shown}");
        // The row is stored with the hash of its image.
        assert!(!shown.contains("$r1"), "{shown}");
        let output = printed(dir, &["replay", name, "eval-0-0-0", "-q"]);
        assert!(output.contains("as recorded"), "{output}");
    }
}
