//! Models and datasets from the Hub, downloaded from a server in this process.

#[path = "../../src/hub/tests/server.rs"]
pub(crate) mod server;

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use server::{Repo, Response, Server};

use super::recipe::recipe;
use super::running::Running;
use super::{directory, r1, shown, tiny_model};
use crate::fork_server::R1;

/// A Hub with the tiny model.
fn repo() -> Repo {
    let mut repo = Repo::new(&[("README.md", b"# Tiny"), ("pytorch_model.bin", b"a pickle")]);
    for entry in std::fs::read_dir(tiny_model()).unwrap() {
        let entry = entry.unwrap();
        repo.files.push((entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()));
    }
    repo
}

/// `r1` with `server` as its Hub and a cache in `dir`.
pub(crate) fn with_hub(dir: &Path, server: &Server, args: &[&str]) -> R1 {
    let mut command = r1(dir, args);
    for variable in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"] {
        command.env_remove(variable);
    }
    command.env("HF_ENDPOINT", &server.url).env("HF_HOME", dir.join("hf")).env("NO_PROXY", "127.0.0.1");
    command
}

fn without_url(dir: &Path, server: &Server, output: &Output) -> String {
    shown(dir, output).replace(&server.url, "HUB")
}

#[test]
fn a_recipe_trains_a_model_from_the_hub() {
    let recipe = r#"
        local env = r1.env {
          format = "retool", max_steps = 1,
          reset = function(task) return { messages = { r1.user(task.problem) } } end,
          step = function(state, action) return { done = true } end,
        }
        return r1.recipe {
          env = env, reward = function(state, outcome) return #outcome.text % 2 end,
          data = { train = "tasks.jsonl" }, sampling = { max_new_tokens = 4 },
          trainer = r1.grpo { steps = 1, group_size = 2, groups_per_step = 1 },
        }"#;
    let dir = directory(&[("a.lua", recipe), ("tasks.jsonl", "{\"problem\": \"1+1\"}\n")], false);
    let server = Server::start(repo());
    let run = ["run", "a.lua", "policy.model=org/tiny@main"];
    let output = with_hub(dir.path(), &server, &run).output().unwrap();
    let text = without_url(dir.path(), &server, &output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("fetching org/tiny: "), "{text}");
    assert!(dir.path().join("runs/a/checkpoints/step-000001/model.safetensors").is_file());
    assert!(!server.requests().iter().any(|request| request.path.contains(".bin")));
    // Offline, and with HF_HUB_OFFLINE, the cached files are used.
    let before = server.requests().len();
    let output = with_hub(dir.path(), &server, &run).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(output.status.success(), "{}", without_url(dir.path(), &server, &output));
    assert_eq!(server.requests().len(), before);
    // The run stores the commit, and so does an adapter, which resumes on the model of that commit.
    let json = |path: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(dir.path().join("runs").join(path)).unwrap()).unwrap()
    };
    let origin = json("a/config.json")["origins"]["model"].clone();
    let commit = origin["commit"].as_str().unwrap().to_owned();
    assert!(origin["name"] == "org/tiny@main" && origin["path"].as_str().unwrap().ends_with(&commit), "{origin}");
    for more in [&["policy.lora.rank=2", "--name", "lora"][..], &["--resume", "lora", "trainer.steps=2"]] {
        let output =
            with_hub(dir.path(), &server, &[&run[..], more].concat()).env("HF_HUB_OFFLINE", "1").output().unwrap();
        assert!(output.status.success(), "{}", without_url(dir.path(), &server, &output));
    }
    let adapter = json("lora/checkpoints/step-000002/adapter_config.json");
    assert_eq!(
        (&adapter["base_model_name_or_path"], &adapter["revision"]),
        (&"org/tiny".into(), &commit.as_str().into())
    );
}

#[test]
fn two_processes_download_a_model_once() {
    let dir = directory(&[], false);
    let server = Server::changed(repo(), |request, _, mut answer| {
        if request.at_file_server {
            answer.pieces = answer.body.chunks(4096).map(<[u8]>::to_vec).collect();
        }
        answer
    });
    let ask = ["infer", "--hf", "org/tiny@main", "-p", "Say 3", "--max-new-tokens", "2", "--quiet"];
    let children: Vec<_> = (0..2)
        .map(|_| {
            let mut command = with_hub(dir.path(), &server, &ask);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", without_url(dir.path(), &server, &output));
    }
    assert_eq!(server.lines(true).len(), 1, "{:?}", server.lines(true));
}

#[test]
fn lua_programs_load_tokenizers_and_templates_from_the_hub_without_weights() {
    let dir = directory(&[], false);
    let server = Server::start(repo());
    let code = "local t = r1.text.tokenizer('org/tiny@main')
                local template = r1.text.template('org/tiny')
                local messages = { r1.user('Say 4') }
                local ids = template:encode(messages, { add_generation_prompt = true })
                return t:decode(ids) == template:render(messages, { add_generation_prompt = true }), template:format()";
    let output = with_hub(dir.path(), &server, &["lua", "-e", code, "--quiet"]).output().unwrap();
    assert_eq!(without_url(dir.path(), &server, &output), "exit: 0\n--- stdout\ntrue\nhermes");
    assert!(!server.requests().iter().any(|request| request.path.contains("safetensors")), "{:?}", server.requests());
    // The cached files are enough afterwards.
    let output = with_hub(dir.path(), &server, &["lua", "-e", code]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert_eq!(without_url(dir.path(), &server, &output), "exit: 0\n--- stdout\ntrue\nhermes");
    // The weights are downloaded when they are needed.
    let code = "return #r1.model('org/tiny@main'):logprobs({ 1, 2, 3 })";
    let output = with_hub(dir.path(), &server, &["lua", "-e", code, "--quiet"]).output().unwrap();
    assert_eq!(without_url(dir.path(), &server, &output), "exit: 0\n--- stdout\n2");
    assert!(server.requests().iter().any(|request| request.path.contains("safetensors")), "{:?}", server.requests());
    let code = "return r1.text.tokenizer('org/other')";
    let output = with_hub(dir.path(), &server, &["lua", "-e", code]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    insta::assert_snapshot!(without_url(dir.path(), &server, &output), @r"
    exit: 5
    --- stderr
    error: `org/other` is not in the cache, or not all of it, and HF_HUB_OFFLINE is set
      --> [dir]/hf/hub
      hint: unset HF_HUB_OFFLINE to fetch it, or set HF_HOME to the cache that has it; there is no directory `org/other` either
    ");
}

/// The command of docs/guide/recipes/speedrun.md for a checkpoint of Agent-R1, which is a directory
/// of a model.
#[test]
fn a_published_checkpoint_is_chatted_with_as_an_agent_of_agent_r1() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut nano = Repo::new(&[("README.md", b"# GRPO")]);
    for entry in std::fs::read_dir(root.join("models/r1-nano")).unwrap() {
        let entry = entry.unwrap();
        nano.files.push((entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()));
    }
    nano.name = "alphaXiv/Qwen-2.5-1.5b-instruct-grpo".to_owned();
    let server = Server::start(nano);
    let pages = "{\"id\": 1, \"title\": \"Rome\", \"text\": \"Rome is in Italy.\"}\n{\"id\": 2, \"title\": \"Bern\", \"text\": \"Bern.\"}\n";
    let dir = directory(&[("pages.jsonl", pages)], false);
    super::succeed(dir.path(), &["index", "build", "pages.jsonl", "--out", "index", "-q"]);
    let script = root.join("scripts/agent_r1.lua").display().to_string();
    let index = format!("params.index={}", dir.path().join("index").display());
    let checkpoint = "alphaXiv/Qwen-2.5-1.5b-instruct-grpo";
    let flags =
        ["--reply-prefix", "<think>\\n", "--top-p", "0.8", "--repetition-penalty", "1.05", "--max-new-tokens", "8"];
    let args = ["infer", "--hf", checkpoint, "--script", &script, &index, "-p", "Where is Rome?", "--json"];
    let output = with_hub(dir.path(), &server, &[&args[..], &flags].concat()).output().unwrap();
    let text = without_url(dir.path(), &server, &output);
    assert!(output.status.success(), "{text}");
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned();
    let reply: serde_json::Value = serde_json::from_str(&last).unwrap();
    // The reply begins inside of its reasoning.
    assert!(reply["event"] == "reply" && reply["reasoning"].is_string(), "{text}");
    // What the policy sees of the tool.
    let code = format!(
        "local script = r1.script('{script}', {{ settings = {{ ['params.index'] = '{}' }} }})
         local trajectory = script:reset {{ task = {{ question = 'Where is Rome?' }} }}
         return trajectory:call('search', {{ query = 'Rome' }}).tools[1].output",
        dir.path().join("index").display()
    );
    let printed = super::succeed(dir.path(), &["lua", "-e", &code]);
    assert!(printed.starts_with("{\"results\":[\"Rome Rome is in Italy.\""), "{printed}");
}

#[test]
fn a_run_that_is_missing_is_not_looked_up_on_the_hub() {
    let dir = directory(&[], false);
    let server = Server::start(repo());
    std::fs::create_dir_all(dir.path().join("runs/retool")).unwrap();
    std::fs::write(dir.path().join("runs/retool/recipe.lua"), "").unwrap();
    let output = with_hub(dir.path(), &server, &["infer", "--model", "runs/retol", "-p", "Hello"]).output().unwrap();
    insta::assert_snapshot!(without_url(dir.path(), &server, &output), @r"
    exit: 5
    --- stderr
    error: there is no run or model `runs/retol`
      hint: did you mean `retool`?; r1 infer --hf runs/retol is a model of the Hub
    ");
    assert!(server.requests().is_empty());
}

#[test]
fn a_gated_or_private_model_is_an_error() {
    let dir = directory(&[], false);
    let server = Server::changed(repo(), |_, _, _| Response::new(401, "").with("X-Error-Code", "RepoNotFound"));
    let output = with_hub(dir.path(), &server, &["infer", "--hf", "org/secret@v1", "-p", "Hello"]).output().unwrap();
    insta::assert_snapshot!(without_url(dir.path(), &server, &output), @r"
    exit: 5
    --- stderr
    error: there is no model `org/secret` on HUB
      hint: check the spelling; if it is private or gated, set HF_TOKEN to a token that may read it
    ");
}

#[test]
fn a_recipe_trains_on_a_dataset_from_the_hub() {
    let recipe = recipe(&[("data", "{ train = r1.data.hf 'org/tiny' { subset = 'main' } }")]);
    let dir = directory(&[("a.lua", &recipe)], false);
    let mut repo = Repo::new(&[
        ("main/train-0.jsonl", b"{\"problem\": \"1+1\"}\n"),
        ("main/train-1.jsonl", b"{\"problem\": \"1+2\"}\n"),
        ("main/test.jsonl", b"{}"),
    ]);
    repo.kind = "datasets";
    let server = Server::start(repo);
    let model = format!("policy.model={}", tiny_model().display());
    let output = with_hub(dir.path(), &server, &["run", "a.lua", &model]).output().unwrap();
    let text = without_url(dir.path(), &server, &output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("fetching data: 2 files"), "{text}");
    let config = std::fs::read(dir.path().join("runs/a/config.json")).unwrap();
    let origin = &serde_json::from_slice::<serde_json::Value>(&config).unwrap()["origins"]["train"];
    assert!(
        origin["name"] == "org/tiny" && origin["commit"].as_str().is_some_and(|commit| commit.len() == 40),
        "{origin}"
    );
    let output = with_hub(dir.path(), &server, &["run", "a.lua", &model, "data.train.split=dev"]).output().unwrap();
    insta::assert_snapshot!(without_url(dir.path(), &server, &output), @r#"
    exit: 4
    --- stderr
    error: the dataset has no split `dev`
      --> HUB/datasets/org/tiny/tree/0123456789abcdef0123456789abcdef01234567
      hint: its files: `main/test.jsonl`, `main/train-0.jsonl`, `main/train-1.jsonl`; `file` names one
    "#);
}

#[test]
fn a_resumed_run_reads_its_dataset_at_its_commit() {
    let recipe = recipe(&[
        ("reward", "function(state) return state.task.problem == 'old' and 1 or 0 end"),
        ("data", "{ train = r1.data.hf 'org/tiny' }"),
    ]);
    let dir = directory(&[("a.lua", &recipe)], false);
    let repo = |row: &str| {
        let mut repo = Repo::new(&[("train.jsonl", format!("{{\"problem\": \"{row}\"}}\n").as_bytes())]);
        repo.kind = "datasets";
        repo
    };
    let model = format!("policy.model={}", tiny_model().display());
    let run = |server: &Server, more: &[&str]| {
        let output = with_hub(dir.path(), server, &[&["run", "a.lua", &model], more].concat()).output().unwrap();
        let text = without_url(dir.path(), server, &output);
        assert!(output.status.success(), "{text}");
        text
    };
    let reward = |step: usize| {
        let steps = super::run_files::training_steps(&dir.path().join("runs/a"));
        steps[step]["reward/mean"].as_f64().unwrap()
    };
    let old = "0123456789abcdef0123456789abcdef01234567";
    run(&Server::start(repo("old")), &["trainer.steps=1"]);
    // The Hub now has another commit, and still the previous one.
    let mut newer = repo("new");
    newer.commit = old.chars().rev().collect();
    let server = Server::changed(newer, move |request, _, answer| {
        if request.path.ends_with(&format!("/revision/{old}")) {
            return Response::new(
                200,
                format!("{{\"sha\": \"{old}\", \"siblings\": [{{\"rfilename\": \"train.jsonl\"}}]}}"),
            );
        }
        answer
    });
    let text = run(&server, &["--resume", "trainer.steps=2"]);
    let printed =
        "data.train: the Hub has a newer commit of org/tiny, 76543210fedc; the run continues with 0123456789ab";
    assert!(
        text.contains(printed) && !text.contains("settings that differ from the run's last configuration:\n    data"),
        "{text}"
    );
    assert_eq!((reward(0), reward(1)), (1.0, 1.0));
    // The newer commit can be selected explicitly.
    let newest = "data.train.hf=org/tiny@76543210fedcba9876543210fedcba9876543210";
    run(&server, &["--resume", "trainer.steps=3", newest]);
    assert!((reward(2) - 0.0).abs() < 1e-12, "{}", reward(2));
}

/// A run that was killed in its cold start resumes with the rows that it began with.
#[test]
fn a_resumed_cold_start_reads_its_dataset_at_its_commit() {
    let cold_start = "r1.recipe {
    data = { train = r1.data.hf 'org/tiny' },
    trainer = r1.sft { steps = 6, batch_size = 2, lr = 1e-3, warmup = 0 },
    checkpoint = { every = 1, keep = 0 },
  }";
    let recipe = recipe(&[("env", "r1.env { format = 'hermes' }"), ("cold_start", cold_start)]);
    let dir = directory(&[("a.lua", &recipe)], false);
    let repo = |verb: &str| {
        let row = |n: usize| format!("{{\"prompt\": \"Say {n}\", \"completion\": \"{verb} {n}\"}}\n");
        let mut repo = Repo::new(&[("train.jsonl", (1..5).map(row).collect::<String>().as_bytes())]);
        repo.kind = "datasets";
        repo
    };
    let model = format!("policy.model={}", tiny_model().display());
    let args = |name: &'static str| ["run", "a.lua", &model, "--name", name].map(str::to_owned);
    let old = "0123456789abcdef0123456789abcdef01234567";
    let first = Server::start(repo("I say"));
    for name in ["whole", "killed"] {
        let args = args(name);
        let mut command = with_hub(dir.path(), &first, &args.each_ref().map(String::as_str));
        if name == "whole" {
            assert!(command.output().unwrap().status.success());
        } else {
            let file = "runs/killed/sft/checkpoints/step-000001/trainer_state/manifest.json";
            super::cold_start::killed(command, dir.path(), &dir.path().join(file));
        }
    }
    let mut newer = repo("You say");
    newer.commit = old.chars().rev().collect();
    let server = Server::changed(newer, move |request, _, answer| {
        if request.path.ends_with(&format!("/revision/{old}")) {
            return Response::new(
                200,
                format!("{{\"sha\": \"{old}\", \"siblings\": [{{\"rfilename\": \"train.jsonl\"}}]}}"),
            );
        }
        answer
    });
    let output = with_hub(dir.path(), &server, &["run", "a.lua", "--resume", "killed"]).output().unwrap();
    let text = without_url(dir.path(), &server, &output);
    assert!(output.status.success() && text.contains("the run continues with 0123456789ab"), "{text}");
    let weights = |run: &str| {
        let last = "sft/checkpoints/step-000006/model.safetensors";
        std::fs::read(dir.path().join("runs").join(run).join(last)).unwrap()
    };
    assert!(weights("whole") == weights("killed"));
    assert!(!dir.path().join("runs/killed/checkpoints/step-000006").exists());
}

/// The first Ctrl-C ends a download that makes no progress, although the command loads the dataset
/// when it needs a row.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_stalled_download_of_a_check() {
    let recipe = recipe(&[("data", "{ train = r1.data.hf 'org/tiny' }")]);
    let dir = directory(&[("a.lua", &recipe)], false);
    let mut repo = Repo::new(&[("train.jsonl", b"{\"problem\": \"x\"}\n")]);
    repo.kind = "datasets";
    let is_file = |path: &str, method: &str| method == "GET" && path.ends_with("train.jsonl");
    let server = Server::changed(repo, move |request, _, answer| {
        let stall = Duration::from_secs(if is_file(&request.path, &request.method) { 60 } else { 0 });
        Response { stall, ..answer }
    });
    let began = Instant::now();
    let check = Running::of(with_hub(dir.path(), &server, &["check", "a.lua"]), dir.path());
    let is_asked = || server.requests().iter().any(|request| is_file(&request.path, &request.method));
    check.until("the request of the file", is_asked);
    check.send(libc::SIGINT);
    let output = check.end();
    let text = without_url(dir.path(), &server, &output);
    assert!(text.starts_with("exit: 130") && text.contains("the check was stopped"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(55), "{text}");
}
