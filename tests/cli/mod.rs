//! Snapshots of the command line: arguments, exit code, stdout and stderr.

mod account;
mod agent;
mod asynchronous;
mod bad_input;
mod basics;
mod batch;
mod branching;
mod check;
mod checkpoints;
mod cold_start;
mod compare;
mod curriculum;
mod data;
mod data_rows;
mod determinism;
mod disk_trouble;
mod doc;
#[cfg(unix)]
mod documented;
mod episodes;
mod eval;
mod eval_server;
mod evaluations;
mod events;
mod failures;
mod flow;
mod gguf;
mod gpu_check;
mod hub;
mod images;
mod images_processes;
mod index;
mod index_dense;
mod infer;
mod infer_stop;
mod infer_trouble;
mod install;
mod json_errors;
mod killed;
mod learning;
mod logprobs;
mod lua;
mod lua_tests;
mod mcp;
mod memory;
mod models;
mod nano_cache;
mod network;
mod oversample;
mod own_format;
mod own_loop;
mod own_loop_critic;
mod own_loop_watched;
mod own_loss;
mod plan;
mod printing;
mod processes;
mod recipe;
mod recipes;
mod reload;
mod repl;
mod repl_json;
mod replay;
mod rerun;
mod resources;
mod resume;
mod reward_model;
mod routing;
mod rows;
mod run_contents;
mod run_files;
mod running;
mod secrets;
mod sft;
mod shell;
mod signals;
mod sources;
mod store_write;
mod tables;
mod torture;
mod trained_tokens;
mod training;
mod traj;
mod updates;
mod videos;
mod view;
mod worlds;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::fork_server::R1;

/// `r1` with `args` in `dir`, without colour, a terminal or the caller's settings.
pub(crate) fn r1(dir: &Path, args: &[&str]) -> R1 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_r1"));
    command.args(args).current_dir(dir).stdin(Stdio::null());
    // A second thread slows such small models down, and tests run in parallel.
    command.env("OMP_NUM_THREADS", "1");
    for variable in ["NO_COLOR", "CLICOLOR_FORCE", "RUST_BACKTRACE", "LANG", "LC_ALL", "LC_CTYPE", "COLUMNS"] {
        command.env_remove(variable);
    }
    R1(command)
}

/// The exit code of a command and its output.
pub(crate) fn shown(dir: &Path, output: &Output) -> String {
    let code = output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string());
    let mut text = format!("exit: {code}");
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            text.push_str(&["\n--- ", name, "\n", String::from_utf8_lossy(bytes).trim_end()].concat());
        }
    }
    text.replace(&format!("{}/", dir.display()), "[dir]/").replace(&dir.display().to_string(), "[dir]")
}

/// A directory with `files` and, as `model`, the tiny model.
pub(crate) fn directory(files: &[(&str, &str)], model: bool) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    if model {
        copy(tiny_model(), &dir.path().join("model"));
    }
    dir
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Trained with `r1 sft`, once for each build: most runners have a process for each test.
pub(crate) fn tiny_model() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let recipe = r#"
            local rows = {}
            for n = 1, 9 do
              rows[n] = { messages = { r1.user("Say " .. n), r1.assistant("I say " .. n) } }
            end
            return r1.recipe {
              env = r1.env { format = "retool" },
              policy = { init = {
                hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1, num_attention_heads = 2,
                num_key_value_heads = 1, max_position_embeddings = 128, vocab_size = 272, tokenizer_rows = 9,
              } },
              data = { train = r1.data.generate { count = 9, row = function(index) return rows[index] end } },
              trainer = r1.sft { steps = 1, batch_size = 2 },
            }"#;
        let built = |path: &Path| path.metadata().unwrap().modified().unwrap();
        let built = built(&std::env::current_exe().unwrap()).max(built(Path::new(env!("CARGO_BIN_EXE_r1"))));
        let built = built.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        let model = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tiny-model-{built}"));
        if !model.exists() {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            std::fs::write(dir.path().join("make.lua"), recipe).unwrap();
            succeed(dir.path(), &["sft", "make.lua", "-q", "--out", "model"]);
            // Another test may have been faster; its model has the same bytes.
            let renamed = std::fs::rename(dir.path().join("model"), &model);
            assert!(model.join("model.safetensors").is_file(), "{renamed:?}");
        }
        model
    })
}

/// Compares exit code, stdout and stderr of a command line: `cli_snapshot!(["run", "x.lua"],
/// @"…")`; with files in its directory: `cli_snapshot!({ "x.lua" => "return 1" }, ["run", "x.lua"],
/// @"…")`; and with the tiny model as `model`: `cli_snapshot!(model, { "x.lua" => RECIPE }, ["run",
/// "x.lua"], @"…")`.
macro_rules! cli_snapshot {
    ([$($arg:expr),* $(,)?], @$expected:literal) => {
        $crate::cli::cli_snapshot!({}, [$($arg),*], @$expected)
    };
    ({ $($file:expr => $text:expr),* $(,)? }, [$($arg:expr),* $(,)?], @$expected:literal) => {
        $crate::cli::cli_snapshot!(in $crate::cli::directory(&[$(($file, &$text)),*], false), [$($arg),*], @$expected)
    };
    (model, { $($file:expr => $text:expr),* $(,)? }, [$($arg:expr),* $(,)?], @$expected:literal) => {
        $crate::cli::cli_snapshot!(in $crate::cli::directory(&[$(($file, &$text)),*], true), [$($arg),*], @$expected)
    };
    (in $dir:expr, [$($arg:expr),* $(,)?], @$expected:literal) => {{
        let dir = $dir;
        let output = $crate::cli::r1(dir.path(), &[$($arg),*]).output().unwrap();
        insta::with_settings!({ filters => vec![
            (r"\b\d+\.\d+\.\d+ \(libtorch \S+\)", "[version] (libtorch [version])"),
            (r"device \w+(:\d)?", "device [device]"),
            (r"(?m)^cpu .+", "cpu [cpu]"),
            (r"instruction set \w+", "instruction set [set]"),
            (r"\b[0-9a-f]{64}\b", "[hash]"),
            (r"\b\d+(\.\d+)? s\b", "[time]"),
        ]}, {
            insta::assert_snapshot!($crate::cli::shown(dir.path(), &output), @$expected);
        });
    }};
}
pub(crate) use cli_snapshot;

/// The output of a command that reads a text from a pipe.
pub(crate) fn piped(mut command: R1, text: &str) -> Output {
    command.output_with(text).unwrap()
}

/// Exit code, stdout and stderr of a command.
pub(crate) fn printed(dir: &Path, args: &[&str]) -> String {
    shown(dir, &r1(dir, args).output().unwrap())
}

/// Both streams of a command that succeeds.
pub(crate) fn ran(dir: &Path, args: &[&str]) -> String {
    let text = printed(dir, args);
    assert!(text.starts_with("exit: 0"), "{args:?}: {text}");
    text
}

/// The stderr of a command that ends with this code.
pub(crate) fn exits(dir: &Path, code: i32, args: &[&str]) -> String {
    let output = r1(dir, args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", shown(dir, &output));
    String::from_utf8(output.stderr).unwrap()
}

/// The stdout of a command that succeeds.
pub(crate) fn succeed(dir: &Path, args: &[&str]) -> String {
    let output = r1(dir, args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", shown(dir, &output));
    String::from_utf8(output.stdout).unwrap()
}

/// The stderr of a command that fails.
pub(crate) fn fail(dir: &Path, args: &[&str]) -> String {
    let output = r1(dir, args).output().unwrap();
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}
