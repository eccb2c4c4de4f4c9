//! Policies that see videos: training, resume, several processes, replay, chat and servers.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::images::{stored, weights};
use super::infer::{bodies, delta, finish, serving, streamed};
use super::run_files::read_json;
use super::{directory, printed, r1, shown, succeed};

/// A square changes its colour; the policy says the last one. A second video is longer.
const RECIPE: &str = r#"
local function video(first, count)
  local frames = {}
  for k = 1, count do
    frames[k] = { rgb = string.rep(string.char(20 * first + 10 * k), 16 * 16 * 3), width = 16 }
  end
  return { type = "video", frames = frames, fps = 4 }
end
local function row() return { first = math.random(5) } end
local env = r1.env {
  max_steps = 2,
  reset = function(task)
    return { first = task.first, messages = { r1.user { video(task.first, 3), { type = "text", text = "Last?" } } } }
  end,
  step = function(state, action)
    r1.push(state.messages, r1.assistant(action.text))
    r1.push(state.messages, r1.user { video(state.first, 5) })
    return { reward = if string.find(action.text, tostring(state.first), 1, true) then 1 else 0 }
  end,
}
return r1.recipe {
  env = env,
  policy = { init = {
    hidden_size = 32, intermediate_size = 64, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1,
    vocab_size = 300, tokenizer_rows = 20,
    vision = { hidden_size = 16, intermediate_size = 32, depth = 1, num_heads = 2, patch_size = 8, min_pixels = 256 },
  } },
  cold_start = {
    data = { train = r1.data.generate { count = 100, seed = 7, row = function()
      local first = math.random(5)
      local content = { video(first, 3), { type = "text", text = "Last?" } }
      return { messages = { r1.user(content), r1.assistant(tostring(first)) } }
    end } },
    trainer = r1.sft { steps = 3, batch_size = 4, lr = 1e-3 },
  },
  data = {
    train = r1.data.generate { count = 100, seed = 1, row = row },
    eval = r1.data.generate { count = 4, seed = 2, row = row },
  },
  sampling = { max_new_tokens = 4 },
  trainer = r1.grpo { steps = 2, group_size = 4, groups_per_step = 2, lr = 1e-3 },
  checkpoint = { every = 1, keep = 0 },
}
"#;

fn train(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    let same = ["--threads", "1", "trainer.gradient_shards=2", "cold_start.trainer.gradient_shards=2"];
    succeed(dir, &[&["run", "clips.lua", "-q", "--name", name][..], &same, more].concat());
    dir.join("runs").join(name)
}

#[test]
#[cfg_attr(not(feature = "cpu-kernels"), ignore = "equal bits need the CPU kernels")]
fn a_run_with_videos_resumes_to_the_same_weights_and_is_replayed() {
    let dir = directory(&[("clips.lua", RECIPE)], false);
    let dir = dir.path();
    let whole = train(dir, "whole", &[]);
    let numbers = stored(&whole);
    assert!(numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
    let names = fs::read_dir(whole.join("images")).unwrap().map(|entry| entry.unwrap().path());
    let videos: Vec<PathBuf> = names.filter(|path| path.extension().unwrap() == "json").collect();
    assert!(videos.len() >= 2, "{videos:?}");
    let halted = train(dir, "halted", &["trainer.steps=1"]);
    succeed(dir, &["run", "clips.lua", "--resume", "halted", "-q", "trainer.steps=2"]);
    assert!(weights(&whole, 2) == weights(&halted, 2), "the resumed run has other weights");
    let both = train(dir, "both", &["--nproc", "2"]);
    assert!(weights(&whole, 2) == weights(&both, 2), "two processes have other weights");
    for run in ["whole", "halted", "both"] {
        let output = printed(dir, &["replay", run, "-q"]);
        assert!(output.ends_with("16 trajectories: every observation, reward and status as recorded"), "{output}");
        succeed(dir, &["traj", "verify", run]);
    }
    let shown = printed(dir, &["traj", "show", "whole", "1-0-0"]);
    assert!(shown.contains("[video "), "{shown}");
    // A video that lost a frame is reported with its file.
    fs::write(&videos[0], r#"{"fps":2.0,"frames":["0"]}"#).unwrap();
    let output = printed(dir, &["replay", "whole", "-q"]);
    assert!(output.contains("damaged"), "{output}");

    let clip = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vision/videos/clip.gif").display().to_string();
    let chat = |model: &str, file: &str| {
        printed(dir, &["infer", "--model", model, "--plain", "--video", file, "-p", "Last?", "-q"])
    };
    let model = "runs/both/checkpoints/step-000002";
    let answer = chat(model, &clip);
    assert!(answer.starts_with("exit: 0"), "{answer}");
    let refused = chat(model, "clips.lua");
    assert!(refused.contains("this is text, not an image") && refused.contains("clips.lua"), "{refused}");
    let missing = chat(model, "missing.gif");
    assert!(missing.contains("can't read the video"), "{missing}");
    let refused = chat("r1-nano", &clip);
    assert!(refused.contains("the video can't be shown: the model reads text only"), "{refused}");
    // A model with settings of its own for videos: checkpoints have them, too.
    let settings = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = read_json(dir.join(model).join("preprocessor_config.json"));
        change(&mut json);
        fs::write(dir.join(model).join("video_preprocessor_config.json"), json.to_string()).unwrap();
    };
    settings(&|json| json["max_pixels"] = json!(10_000));
    let start = format!("policy.model={model}");
    let more = ["policy.init=null", "cold_start=false", "trainer.steps=1", &start];
    let again = train(dir, "again", &more);
    let read = |dir: &Path| fs::read(dir.join("video_preprocessor_config.json")).unwrap();
    assert_eq!(read(&again.join("checkpoints/step-000001")), read(&dir.join(model)));
    settings(&|json| json["patch_size"] = json!(4));
    let refused = chat(model, &clip);
    assert!(refused.contains("video_preprocessor_config.json and `vision_config` in config.json"), "{refused}");
}

/// Messages that can't become a prompt end their trajectory, and not the run. Text that is the name
/// of a placeholder is text.
#[test]
fn a_prompt_that_fails_ends_its_trajectory_only() {
    let recipe = r#"
return r1.recipe {
  env = r1.env { max_steps = 2,
    reset = function(task) return { task = task, messages = { r1.user "q" } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action.text))
      r1.push(state.messages, r1.user(state.task.shown))
      return { reward = #action.text }
    end },
  policy = { model = "model" }, sampling = { max_new_tokens = 4 }, rollout = { retries = 0, max_failure_rate = 1 },
  data = { train = {
    { shown = "<|image_pad|>" }, { shown = "<|video_pad|>" }, { shown = { { type = "image", hash = string.rep("a", 64) } } },
  } },
  trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 3 },
}
"#;
    let dir = directory(&[("clips.lua", RECIPE), ("mixed.lua", recipe)], false);
    let dir = dir.path();
    let run = train(dir, "a", &["trainer.steps=1"]);
    std::os::unix::fs::symlink(run.join("checkpoints/step-000001"), dir.join("model")).unwrap();
    succeed(dir, &["run", "mixed.lua", "-q", "--threads", "1", "--name", "b"]);
    let listed = printed(dir, &["traj", "ls", "b", "--json"]);
    let statuses = |status: &str| listed.lines().filter(|line| line.contains(&format!("\"{status}\""))).count();
    assert_eq!(statuses("env_error"), 2, "{listed}");
    // Supervised training of a text model, and files of conversations, have no images.
    let row = json!({ "images": [{ "base64": "" }], "messages": [{ "role": "user", "content": "<image>?" }, { "role": "assistant", "content": "1" }] });
    fs::write(dir.join("rows.jsonl"), format!("{row}\n")).unwrap();
    let sft = "return r1.recipe { policy = { model = 'r1-nano' }, data = { train = 'rows.jsonl' }, trainer = r1.sft { steps = 1 } }";
    fs::write(dir.join("sft.lua"), sft).unwrap();
    let refused = printed(dir, &["sft", "sft.lua", "-q"]);
    assert!(refused.contains("the row has an image, and the model reads text only"), "{refused}");
    let refused =
        printed(dir, &["infer", "--model", "r1-nano", "--input", "rows.jsonl", "--output", "out.jsonl", "-q"]);
    let replies = fs::read_to_string(dir.join("out.jsonl")).unwrap_or_default();
    assert!(format!("{refused}{replies}").contains("the row has an image, and the model reads text only"), "{refused}");
    let exported = printed(dir, &["traj", "export", "a", "--sft", "-o", "examples.jsonl"]);
    assert!(exported.contains("with images"), "{exported}");
}

/// The API of a server gets the frames of a video as images.
#[test]
fn servers_get_the_frames_of_videos() {
    let dir = directory(&[("clips.lua", RECIPE)], false);
    let server = serving(|_, _| streamed(&[delta(&json!({ "content": "1" })), finish("stop")]));
    let base = format!("policy.api_base={}/v1", server.url);
    let args =
        ["eval", "clips.lua", &base, "policy.model=m", "policy.init=null", "cold_start=false", "-q", "eval.limit=1"];
    let output = r1(dir.path(), &[&args[..], &["--name", "e"]].concat()).env("NO_PROXY", "127.0.0.1").output().unwrap();
    assert!(output.status.success(), "{}", shown(dir.path(), &output));
    let bodies = bodies(&server);
    let content = bodies[0]["messages"][0]["content"].as_array().unwrap();
    let types: Vec<&str> = content.iter().map(|part| part["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["image_url", "image_url", "image_url", "text"]);
    let output = printed(dir.path(), &["replay", "e", "eval-0-0-0", "-q"]);
    assert!(output.contains("as recorded"), "{output}");
}
