//! For every script of the repository: a forked trajectory that continues with the same responses
//! equals the one without a fork.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::ScriptedPolicy;
use crate::config::Trainer;
use crate::mdp::{Answer, Request, StepSeconds, Trajectory};
use crate::rollout::{Attempt, Reached, Spec, Stage, first_difference, go_on, go_to, replay};
use crate::script::{Record, Script, Split, Strictness, Worker};
use crate::text::Renderer;
use crate::vision::{DecodeLimits, Images, Processor};

/// The response of the policy at a step.
#[derive(Clone, Debug)]
enum Word {
    Text(String),
    /// A call of one of the tools; text if there is none.
    Call(usize, String),
    Answer(i64),
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        "[a-z ]{0,12}".prop_map(Word::Text),
        (0..3_usize, prop::sample::select(vec!["x = 3\nprint(x)", "print(2 ** 9)", "1/0", "balance 7", ""]))
            .prop_map(|(tool, text)| Word::Call(tool, text.to_owned())),
        (-9..99_i64).prop_map(Word::Answer),
    ]
}

/// The word as the policy writes it in `format`.
fn written(word: &Word, tools: &[Value], format: &str) -> String {
    match word {
        Word::Text(text) => text.clone(),
        Word::Answer(number) => format!("<answer>\\boxed{{{number}}}</answer>"),
        Word::Call(..) if tools.is_empty() => "no tool".to_owned(),
        Word::Call(_, text) if format == "retool" => format!("<code>{text}</code>"),
        Word::Call(tool, text) => {
            let function = &tools[tool % tools.len()]["function"];
            let required = function["parameters"]["properties"].as_object().cloned().unwrap_or_default();
            let arguments: serde_json::Map<String, Value> =
                required.keys().map(|name| (name.clone(), json!(text))).collect();
            format!("<tool_call>\n{}\n</tool_call>", json!({ "name": function["name"], "arguments": arguments }))
        }
    }
}

/// A trajectory without the fields that depend on time and caches.
fn timeless(mut trajectory: Trajectory) -> Trajectory {
    for step in &mut trajectory.steps {
        step.prefilled = 0;
        step.seconds = StepSeconds::default();
        step.tools.iter_mut().for_each(|tool| tool.seconds = 0.0);
    }
    for exchange in &mut trajectory.record {
        if let Some(Answer::Ok(answer)) = &mut exchange.answer
            && answer.get("seconds").is_some()
        {
            answer["seconds"] = json!(0);
        }
    }
    trajectory
}

/// A script that trains by trying, ready to run.
struct Fixture {
    script: Script,
    renderer: Arc<Renderer>,
    worker: Worker,
    format: &'static str,
}

/// The scripts of scripts/, and the templates of `r1 new`.
fn fixtures() -> Vec<Fixture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = |folder: &str| std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = files("scripts").chain(files("lua/templates")).collect();
    paths.retain(|path| {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        path.extension().is_some_and(|ending| ending == "lua") && !stem.ends_with("_test")
    });
    paths.sort();
    let mut fixtures = Vec::new();
    // Templates as `r1 new` writes them.
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(root.join("lua/templates/search_pages.jsonl"), dir.path().join("x_pages.jsonl")).unwrap();
    for path in paths {
        let filled = path.starts_with(root.join("lua/templates")).then(|| dir.path().join(path.file_name().unwrap()));
        if let Some(filled) = &filled {
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(filled, text.replace("{{name}}", "x")).unwrap();
        }
        let script = Script::load(filled.as_ref().unwrap_or(&path), &[]).unwrap();
        if matches!(script.settings.trainer, Trainer::Sft(_)) {
            continue;
        }
        let format = if script.settings.env.format == "retool" { "retool" } else { "hermes" };
        let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), format).unwrap());
        renderer.tokenizer().set_images_of_another_model(Arc::new(Images::new(processor(), DecodeLimits::default())));
        let worker = Worker::new(&script, Some(Arc::clone(&renderer))).unwrap();
        if let Err(error) = worker.prepare() {
            eprintln!("{} skipped: {error}", path.display());
            continue;
        }
        fixtures.push(Fixture { script, renderer, worker, format });
    }
    fixtures
}

/// For recipes that show images.
fn processor() -> Processor {
    let json = json!({ "patch_size": 8, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5] });
    Processor::from_json(&json).unwrap()
}

async fn fork_equals_original(fixture: &Fixture, replies: Vec<Word>, row: u64) {
    let Fixture { script, renderer, worker, format } = fixture;
    let (tools, format) = (worker.tools().to_vec(), *format);
    let say = move |request: &Request| {
        // A text that a context function generates is a separate step.
        let word = replies.get(request.seed.step as usize % replies.len()).filter(|_| request.seed.step != u32::MAX);
        (word.map_or_else(|| "so far so good".to_owned(), |word| written(word, &tools, format)), -0.5)
    };
    let policy = ScriptedPolicy { renderer: Arc::clone(renderer), say, log: Mutex::default() };
    let stage = Stage { worker, renderer };
    let spec = Spec { max_context: 1024, ..Spec::new(Split::Train, row, &script.settings) };
    let task = worker.row(Split::Train, row).unwrap();
    let begin = async || Attempt::begin(stage, spec.clone(), task.clone(), &Record::live()).await.unwrap();
    let whole = go_on(stage, &policy, begin().await).await.unwrap();
    let wanted = timeless(whole.clone());
    for step in 0..whole.steps.len() {
        let Reached::There(mut attempt) = go_to(stage, &policy, begin().await, step).await.unwrap() else {
            assert_eq!(step + 1, whole.steps.len(), "it ended early");
            break;
        };
        // With or without a previous call of `observe`, as for branches of the sampler.
        if step % 2 == 0 && !script.source.contains("summarize") {
            drop(attempt.observe(stage).await);
        }
        let fork = attempt.fork(attempt.spec().clone()).unwrap();
        assert_eq!(fork.state().snapshot().unwrap(), attempt.state().snapshot().unwrap());
        let named = Spec { id: "another".to_owned(), ..attempt.spec().clone() };
        let other = attempt.fork(named.clone()).unwrap();
        for (what, attempt) in [("the fork", fork), ("what was forked", *attempt)] {
            let ended = timeless(go_on(stage, &policy, attempt).await.unwrap());
            assert_eq!(ended, wanted, "{what}, after {step} steps of {}", script.path.display());
        }
        let branch = go_on(stage, &policy, other).await.unwrap();
        assert_eq!(branch.steps.len(), whole.steps.len());
        let replayed = replay(stage, &branch, named, Strictness::Exact).await.unwrap();
        assert_eq!(first_difference(renderer, &branch, &replayed), None);
    }
}

#[test]
fn a_fork_of_a_flow_with_the_same_replies_gives_the_same_trajectory() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for fixture in fixtures() {
        let mut runner =
            proptest::test_runner::TestRunner::new(ProptestConfig { cases: 6, ..ProptestConfig::default() });
        let plans = (prop::collection::vec(word(), 1..6), 0..50_u64);
        let ran = runner.run(&plans, |(replies, row)| {
            runtime.block_on(fork_equals_original(&fixture, replies, row));
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{}: {error}", fixture.script.path.display()));
    }
}
