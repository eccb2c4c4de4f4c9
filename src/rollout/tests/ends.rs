//! The ends of trajectories: `done` of the environment, limits, full contexts, retries.

use super::*;
use serde_json::json;

use crate::mdp::{Limit, Scripted};

/// A recipe in a new directory, and the requests to its policy.
struct Ends {
    script: Script,
    renderer: Arc<Renderer>,
    seen: Arc<Mutex<Vec<Request>>>,
    _dir: tempfile::TempDir,
}

impl Ends {
    fn new(env: &str, settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lua");
        let source = format!(
            "return r1.recipe {{ env = r1.env {{ {env} }},\n\
             reward = function(state, outcome) return {{ one = 1, ended = outcome.terminated and 1 or 0 }} end,\n\
             data = {{ train = {{ {{ prompt = 'go' }} }} }} }}"
        );
        std::fs::write(&path, source).unwrap();
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = Script::load(&path, &settings).unwrap();
        let renderer = Renderer::load_styled(&root.join("models/r1-nano"), &script.style().unwrap()).unwrap();
        Self { script, renderer: Arc::new(renderer), seen: Arc::default(), _dir: dir }
    }

    fn spec(&self) -> Spec {
        Spec { next_prompt: true, ..Spec::new(Split::Train, 0, &self.script.settings) }
    }

    /// One trajectory by a policy that replies with `ids`, cut where they are too many.
    fn run(&self, spec: Spec, retries: usize, ids: Vec<u32>) -> Trajectory {
        let seen = Arc::clone(&self.seen);
        let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |request| {
            lock(&seen).push(request.clone());
            ids.clone()
        }));
        let options = PoolOptions { workers: 1, concurrency: 1, retries };
        let pool = Pool::new(&self.script, &self.renderer, &options).unwrap();
        pool.start(&policy, vec![spec], &no_progress()).unwrap().finish().unwrap().remove(0)
    }

    fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut *lock(&self.seen))
    }

    fn replays(&self, trajectory: &Trajectory, spec: Spec) {
        let worker = Worker::new(&self.script, Some(Arc::clone(&self.renderer))).unwrap();
        let stage = Stage { worker: &worker, renderer: &self.renderer };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let replayed = runtime.block_on(replay(stage, trajectory, spec, Strictness::Exact)).unwrap();
        assert_eq!(first_difference(&self.renderer, trajectory, &replayed), None);
        assert!(!replayed.unfinished);
    }
}

/// Continues until a limit stops it.
const ENDLESS: &str = "step = function(state, action) r1.push(state.messages, r1.assistant(action))\n\
    r1.push(state.messages, r1.user('on')) return { reward = 0 } end";

#[test]
fn done_of_an_environment_is_final_after_a_truncated_reply() {
    let bench = Ends::new("step = function(state, action) return { done = true, reward = 0.5 } end", &[]);
    let spec = || {
        let mut spec = bench.spec();
        Arc::make_mut(&mut spec.sampling).max_new_tokens = 4;
        spec
    };
    let cut = bench.run(spec(), 0, vec![5; 9]);
    let step = &cut.steps[0];
    assert_eq!(step.finish_reason, FinishReason::Length);
    assert_eq!(
        (cut.status, cut.truncated_by, step.terminated, step.truncated),
        (Status::Terminated, None, true, false)
    );
    assert!(step.next_prompt_ids.is_empty(), "a critic has no value to predict after a terminal state");
    assert_eq!((cut.reward_parts["ended"], cut.total_reward()), (1.0, 2.5));
    bench.replays(&cut, spec());

    // The default step truncates after a cut reply; a custom env may do the same.
    for env in ["", "step = function(state, action) return { truncated = true } end"] {
        let bench = Ends::new(env, &[]);
        let cut = bench.run(Spec { sampling: spec().sampling, ..bench.spec() }, 0, vec![5; 9]);
        let step = &cut.steps[0];
        assert_eq!((cut.status, cut.truncated_by), (Status::Truncated, Some(Limit::Length)), "{env}");
        assert!(!step.terminated && step.truncated);
        assert_eq!(step.next_prompt_ids, [&step.prompt_ids[..], &step.response_ids].concat());
        assert_eq!(cut.reward_parts["ended"], 0.0);
    }
}

/// The parts of `step` are summed over the steps; a part that `reward` also returns would be added
/// to them.
#[test]
fn parts_of_step_and_reward_must_have_different_names() {
    let step = |name: &str| {
        format!("step = function(state, action) return {{ done = true, reward = 1, parts = {{ {name} = 2 }} }} end")
    };
    let fine = Ends::new(&step("other"), &[]);
    assert_eq!(fine.run(fine.spec(), 0, vec![5; 3]).reward_parts["other"], 2.0);
    let both = Ends::new(&step("one"), &[]);
    let failed = both.run(both.spec(), 3, vec![5; 3]);
    let error = failed.error_text().unwrap();
    assert_eq!((failed.status, failed.retries), (Status::EnvError, 0), "{error}");
    assert!(error.starts_with("reward and step both return the part `one`"), "{error}");
    assert!(error.contains(".lua:2"), "{error}");
}

#[test]
fn a_full_context_ends_a_trajectory_and_its_reward_counts() {
    let bench = Ends::new(ENDLESS, &[]);
    let spec = || Spec { max_context: 120, ..bench.spec() };
    let full = bench.run(spec(), 3, vec![5; 30]);
    let last = full.steps.last().unwrap();
    assert_eq!((full.status, full.truncated_by, full.retries), (Status::Truncated, Some(Limit::ContextOverflow), 0));
    assert!(last.truncated && !last.terminated && last.next_prompt_ids.is_empty());
    assert!(full.steps.len() > 1 && full.steps.len() < 8);
    assert!(full.steps[..full.steps.len() - 1].iter().all(|step| !step.truncated));
    assert_eq!((full.total_reward(), full.reward_parts["one"]), (1.0, 1.0));
    assert_eq!(bench.requests().len(), full.steps.len());
    bench.replays(&full, spec());

    // The same with a context function that cannot shorten it.
    let keeps = "max_steps = 99, reset = function(task) return { messages = { r1.user('go') } } end, ";
    let bench = Ends::new(&format!("{keeps}{ENDLESS}"), &["env.on_overflow=fail"]);
    let spec = || Spec { max_context: 120, ..bench.spec() };
    let failed = bench.run(spec(), 0, vec![5; 30]);
    assert_eq!((failed.status, failed.truncated_by), (Status::ContextOverflow, None));
    assert!(failed.error_text().unwrap().contains("the context holds 120"));
}

#[test]
fn a_first_prompt_that_does_not_fit_is_a_failure() {
    for setting in ["env.on_overflow=end", "env.on_overflow=fail"] {
        let bench = Ends::new(ENDLESS, &[setting]);
        let failed = bench.run(Spec { max_context: 4, ..bench.spec() }, 3, vec![5; 30]);
        assert_eq!((failed.status, failed.steps.len(), failed.retries), (Status::ContextOverflow, 0, 0), "{setting}");
        assert!(bench.requests().is_empty());
    }
}

#[test]
fn the_tokens_of_a_trajectory_are_bounded() {
    let bench = Ends::new(ENDLESS, &["env.max_tokens=70"]);
    let ended = bench.run(bench.spec(), 0, vec![5; 30]);
    assert_eq!((ended.status, ended.truncated_by), (Status::Truncated, Some(Limit::MaxTokens)));
    assert_eq!(ended.steps.iter().map(|step| step.response_ids.len()).collect::<Vec<_>>(), [30, 30, 10]);
    let rooms: Vec<usize> = bench.requests().iter().map(|request| request.sampling.max_new_tokens).collect();
    assert_eq!(rooms, [70, 40, 10]);
    assert!(ended.steps[2].truncated);
    bench.replays(&ended, bench.spec());
}

#[test]
fn a_retry_samples_again_and_deterministic_failures_are_not_retried() {
    // Sampled replies: every attempt has another random stream.
    let bench = Ends::new("step = function() error('no') end", &[]);
    let failed = bench.run(bench.spec(), 2, vec![5]);
    assert_eq!((failed.status, failed.retries), (Status::EnvError, 2));
    let seeds: std::collections::HashSet<u64> = bench.requests().iter().map(|request| request.seed.seed).collect();
    assert_eq!(seeds.len(), 3, "a stream for each attempt");
    // Greedy replies would be the same.
    let greedy = || {
        let mut spec = bench.spec();
        Arc::make_mut(&mut spec.sampling).temperature = 0.0;
        spec
    };
    let failed = bench.run(greedy(), 3, vec![5]);
    assert_eq!((failed.retries, bench.requests().len()), (0, 1));
    // Except with external calls.
    let bench = Ends::new("step = function() r1.clock() error('no') end", &[]);
    let failed = bench.run(Spec { sampling: greedy().sampling, ..bench.spec() }, 1, vec![5]);
    assert_eq!((failed.retries, bench.requests().len()), (1, 2));
    // Nothing was sampled.
    let bench = Ends::new("reset = function() error('no') end", &[]);
    let failed = bench.run(bench.spec(), 3, vec![5]);
    assert_eq!((failed.status, failed.retries), (Status::EnvError, 0));
}

#[test]
fn a_reply_that_parse_fails_on_is_the_last_step() {
    let env =
        "format = r1.format { name = 'own', parse = function(text) if #text > 2 then error('no reading') end end }";
    let bench = Ends::new(env, &["seed=3"]);
    let failed = bench.run(bench.spec(), 0, vec![5; 3]);
    assert_eq!((failed.status, failed.steps.len()), (Status::EnvError, 1), "{:?}", failed.error);
    let error = failed.error_text().unwrap();
    assert!(error.contains("`parse` of the format `own`") && error.contains("no reading"), "{error}");
    let step = &failed.steps[0];
    assert_eq!((&step.response_ids[..], step.logprobs.len()), (&[5, 5, 5][..], 3));
    assert_eq!(step.text, bench.renderer.tokenizer().decode(&[5; 3], false));
    assert!(!step.prompt_ids.is_empty() && !step.terminated && !step.truncated);
    bench.replays(&failed, bench.spec());
}

#[test]
fn close_is_called_after_every_end_of_a_trajectory_and_changes_nothing() {
    const CLOSE: &str =
        "close = function(state) r1.log('closed', #state.messages, r1.clock() > 0) error('late') end,\n";
    for (step, status) in [
        ("step = function() return { done = true } end", Status::Terminated),
        (ENDLESS, Status::Truncated),
        ("step = function() error('boom') end", Status::EnvError),
        ("reset = function() error('boom') end", Status::EnvError),
    ] {
        let run = |close: &str| {
            let bench = Ends::new(&format!("{close} max_steps = 2, {step}"), &[]);
            let worker = Worker::new(&bench.script, Some(Arc::clone(&bench.renderer))).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let policy = Scripted::new(|_| vec![5; 3]);
            let made = runtime.block_on(drive(&worker, &bench.renderer, &policy, &bench.spec())).unwrap();
            let log: Vec<String> = worker.take_log().into_iter().map(|line| line.text).collect();
            bench.replays(&made, bench.spec());
            // A replay does not close what it never opened.
            let stage = Stage { worker: &worker, renderer: &bench.renderer };
            runtime.block_on(replay(stage, &made, bench.spec(), Strictness::Exact)).unwrap();
            assert_eq!(worker.take_log(), []);
            (made, log)
        };
        let (made, log) = run(CLOSE);
        assert_eq!(made.status, status);
        if step.starts_with("reset") {
            assert!(log.is_empty(), "{log:?}");
        } else {
            assert_eq!(log.len(), 2, "{log:?}");
            assert!(log[0].starts_with("closed ") && log[1].starts_with("close failed: late"), "{log:?}");
        }
        let (plain, _) = run("");
        assert_eq!(
            (made.outcome_reward, &made.record, made.steps.len()),
            (plain.outcome_reward, &plain.record, plain.steps.len())
        );
    }
}

/// Many models have more embeddings than their tokenizer has tokens.
#[test]
fn a_sampled_id_without_a_token_stays_in_the_context() {
    const OF_IDS: &str = "reset = function() return { ids = { 1, 2 } } end,
        context = function(state) return { token_ids = state.ids } end,
        step = function(state, action)
          for _, id in ipairs(action.token_ids) do r1.push(state.ids, id) end
          return { reward = 0 }
        end";
    for env in [ENDLESS, OF_IDS] {
        let bench = Ends::new(&format!("max_steps = 3, {env}"), &[]);
        let unnamed = bench.renderer.tokenizer().vocab_size() as u32 + 7;
        let stop = bench.renderer.stop_ids()[0];
        let trajectory = bench.run(bench.spec(), 0, vec![unnamed, stop]);
        assert_eq!((trajectory.status, trajectory.error), (Status::Truncated, None), "{env}");
        let prompts: Vec<Vec<u32>> = bench.requests().into_iter().map(|request| request.prompt_ids).collect();
        let counts: Vec<usize> = prompts.iter().map(|ids| ids.iter().filter(|id| **id == unnamed).count()).collect();
        assert_eq!(counts, [0, 1, 2], "{env}");
        assert!(prompts[2].starts_with(&[&prompts[1][..], &[unnamed, stop]].concat()));
    }

    let ends = Ends::new("context = function() return { token_ids = { 1, 2, 99999 } } end", &[]);
    let last = ends.renderer.tokenizer().vocab_size() - 1;
    let refused = ends.run(ends.spec(), 0, vec![ends.renderer.stop_ids()[0]]);
    assert_eq!(refused.status, Status::EnvError);
    let why = format!("the observation has the token id 99999; the vocabulary ends at {last}");
    assert_eq!(refused.error.unwrap().message, why);
}

/// A chat continues after its env is done, and after a reply that was stopped.
#[test]
fn a_resumed_conversation_extends_the_sampled_ids() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/r1-nano");
    let renderer = Arc::new(Renderer::load(&model, "hermes").unwrap());
    let script = Script::embedded("chat", include_str!("../../../lua/chat.lua")).unwrap();
    let worker = Worker::new(&script, Some(Arc::clone(&renderer))).unwrap();
    let stage = Stage { worker: &worker, renderer: &renderer };
    let spec = Spec { max_context: 1024, ..Spec::new(Split::Eval, 0, &script.settings) };
    let encode = |text: &str| renderer.tokenizer().encode(text).unwrap();
    let letters: Vec<u32> = "again".chars().flat_map(|letter| encode(&letter.to_string())).collect();
    assert_ne!(letters, encode("again"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for is_stopped in [false, true] {
        let task = json!({ "messages": [{ "role": "user", "content": "one" }] });
        let record = crate::script::Record::live();
        let mut attempt = runtime
            .block_on(Attempt::begin(stage, spec.clone(), task, &record))
            .map_err(|failure| failure.error)
            .unwrap();
        let first = runtime.block_on(attempt.request(stage)).unwrap().unwrap().prompt_ids;
        let token_ids = if is_stopped { letters.clone() } else { [letters.clone(), encode("<|im_end|>")].concat() };
        let completion = Completion { token_ids: token_ids.clone(), ..Completion::default() };
        let mut added = vec![json!({ "role": "user", "content": "two" })];
        if is_stopped {
            let text = attempt.keep_reply(stage, &completion);
            added.insert(0, json!({ "role": "assistant", "content": text }));
        } else {
            runtime.block_on(attempt.act(stage, completion)).unwrap();
            assert_eq!(attempt.over(), Some(Status::Terminated));
        }
        let mut snapshot = attempt.state().snapshot().unwrap();
        snapshot["state"]["messages"].as_array_mut().unwrap().extend(added);
        let state = worker.resume(attempt.state(), &snapshot).unwrap();
        attempt.resume(state);
        let next = runtime.block_on(attempt.request(stage)).unwrap().unwrap().prompt_ids;
        assert!(next.starts_with(&[first, token_ids].concat()), "stopped: {is_stopped}");
    }
}
