//! Tests of trees: the states where branches start, the steps they share with their root, and
//! independence of concurrent trajectories.
#![allow(clippy::unwrap_used, clippy::float_cmp, clippy::print_stderr, clippy::panic)]

mod ends;
mod flows;
mod forks;
mod typed;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::pool::lock;
use super::*;
use crate::config::BranchAt;
use crate::mdp::{Completion, FinishReason, Fork, PendingReply, Policy, Request, Status, Trajectory};
use crate::script::{Script, Split, Strictness, Worker};
use crate::text::Renderer;

/// Draws a number per step from the env's random stream. The response decides the next state.
const GAME: &str = r#"
local look = r1.tool { name = "look", description = "Looks", parameters = {}, run = function() return "seen" end }
return r1.recipe {
  env = r1.env {
    max_steps = 6, tools = { look }, format = "hermes",
    reset = function(task) return { task = task, draws = { math.random(1000) }, messages = { r1.user("go") } } end,
    step = function(state, action)
      r1.push(state.messages, r1.assistant(action))
      r1.push(state.draws, math.random(1000))
      for _, result in ipairs(r1.call_tools(action.tool_calls)) do r1.push(state.messages, r1.observation(result)) end
      r1.push(state.messages, r1.user("draw " .. state.draws[#state.draws] .. " at " .. r1.clock() // 1e9))
      if action.text:find("boom") then error("boom") end
      return { done = action.text:find("stop") ~= nil, reward = #action.text }
    end,
  },
  reward = function(state) return { last = state.draws[#state.draws] / 1000 } end,
  data = { train = r1.data.generate { count = 4, row = function(n) return { n = n } end } },
}
"#;

/// A policy whose response and log-probabilities are functions of the request.
struct ScriptedPolicy<F> {
    renderer: Arc<Renderer>,
    say: F,
    log: Mutex<Log>,
}

/// Requests by conversation and step, and released conversations.
type Log = (Vec<(u64, u32)>, Vec<u64>);

impl<F: Fn(&Request) -> (String, f32) + Send + Sync> Policy for ScriptedPolicy<F> {
    fn submit(&self, request: Request) -> PendingReply {
        lock(&self.log).0.push((request.conversation, request.seed.step));
        let (text, logp) = (self.say)(&request);
        let token_ids = self.renderer.tokenizer().encode(&format!("{text}<|im_end|>")).unwrap();
        let (sender, receiver) = oneshot::channel();
        let completion = Completion {
            logprobs: vec![logp; token_ids.len()],
            token_ids,
            finish_reason: FinishReason::Stop,
            prefilled: 1,
            ..Completion::default()
        };
        let _ = sender.send(Ok(completion));
        receiver.into()
    }

    fn release(&self, conversation: u64) {
        lock(&self.log).1.push(conversation);
    }
}

struct Bench {
    script: Script,
    renderer: Arc<Renderer>,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lua");
        std::fs::write(&path, GAME).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let renderer = Arc::new(Renderer::load(&root.join("models/r1-nano"), "hermes").unwrap());
        Self { script: Script::load(&path, &[]).unwrap(), renderer, _dir: dir }
    }

    fn spec(&self, group: u64, sample: u32) -> Spec {
        let mut spec = Spec { group, sample, ..Spec::new(Split::Train, group, &self.script.settings) };
        spec.id = format!("1-{group}-{sample}");
        spec.seed.trajectory = group * 100 + u64::from(sample);
        spec
    }

    /// A root and its branches.
    fn tree(&self, group: u64, branches: u32, at: BranchAt, width: usize) -> Tree {
        let branches = (1..=branches).map(|sample| self.spec(group, sample)).collect();
        Tree { root: self.spec(group, 0), branches, at, width, rounds: 1 }
    }

    /// The trajectories of trees, with their requests and releases.
    fn run_trees(
        &self,
        trees: Vec<Tree>,
        options: &PoolOptions,
        say: impl Fn(&Request) -> (String, f32) + Send + Sync + 'static,
    ) -> (Vec<Trajectory>, Vec<(u64, u32)>, Vec<u64>) {
        let scripted = Arc::new(ScriptedPolicy { renderer: Arc::clone(&self.renderer), say, log: Mutex::default() });
        let policy: Arc<dyn Policy> = Arc::clone(&scripted) as _;
        let pool = Pool::new(&self.script, &self.renderer, options).unwrap();
        let trajectories = pool.start(&policy, trees, &no_progress()).unwrap().finish().unwrap();
        let (requests, over) = lock(&scripted.log).clone();
        (trajectories, requests, over)
    }
}

/// Any response, computed from the request's seed alone; roots of groups have several steps.
fn seeded_reply(request: &Request) -> (String, f32) {
    reply(request.seed.trajectory, request.seed.step)
}

/// The reply of step `step` of the trajectory with this seed.
fn reply(trajectory: u64, step: u32) -> (String, f32) {
    let mixed = (trajectory * 31 + u64::from(step) * 17 + 5).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
    let word = if step > 2 && mixed.is_multiple_of(3) { "stop" } else { "say" };
    (format!("{word} {}", mixed % 10_000), -((mixed % 7) as f32))
}

fn calls(step: u32, from: u32) -> (String, f32) {
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
    (if step == from { call.to_owned() } else { format!("say {step}") }, 0.0)
}

fn one() -> PoolOptions {
    PoolOptions { workers: 1, concurrency: 4, retries: 1 }
}

fn forked_at(trajectories: &[Trajectory]) -> Vec<Option<u32>> {
    trajectories.iter().map(|trajectory| trajectory.fork.as_ref().map(|fork| fork.step)).collect()
}

#[test]
fn a_branch_equals_its_root_up_to_the_fork_and_can_be_replayed() {
    let bench = Bench::new();
    let trees = || (0..4).map(|group| bench.tree(group, 5, BranchAt::Random, 2)).collect();
    let (trajectories, _, over) = bench.run_trees(trees(), &one(), seeded_reply);
    assert_eq!(trajectories.len(), 24);
    let by_id: HashMap<&str, &Trajectory> = trajectories.iter().map(|t| (t.id.as_str(), t)).collect();
    let worker = Worker::new(&bench.script, Some(Arc::clone(&bench.renderer))).unwrap();
    let stage = Stage { worker: &worker, renderer: &bench.renderer };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for trajectory in &trajectories {
        assert_eq!(trajectory.fork.is_some(), trajectory.sample > 0, "{}", trajectory.id);
        if let Some(Fork { parent, step }) = &trajectory.fork {
            let (parent, at) = (by_id[parent.as_str()], *step as usize);
            assert_eq!((parent.sample, parent.group), (0, trajectory.group));
            assert!(at > 0 && at < parent.steps.len() && trajectory.steps.len() > at);
            assert_eq!(trajectory.shared_steps(), at);
            assert_eq!(trajectory.steps[..at], parent.steps[..at]);
            // The observation of the same state is equal, and the policy samples another response.
            assert_eq!(trajectory.steps[at].prompt_ids, parent.steps[at].prompt_ids);
            assert_ne!(trajectory.steps[at].response_ids, parent.steps[at].response_ids);
        }
        // A replay of the branch's replies gives the same env: clock, draws and rewards as
        // recorded.
        let spec = Spec::of_recorded(trajectory, &bench.script.settings, 0);
        let replayed = runtime.block_on(replay(stage, trajectory, spec, Strictness::Exact)).unwrap();
        assert_eq!(first_difference(&bench.renderer, trajectory, &replayed), None, "{}", trajectory.id);
    }
    // Each conversation is released once.
    let mut over = over;
    over.sort_unstable();
    let all: Vec<u64> = trajectories.iter().map(|t| t.group * 100 + u64::from(t.sample)).collect();
    assert_eq!(over, all);
    // Independent of concurrency, except for the clock.
    for options in [
        PoolOptions { workers: 3, concurrency: 3, retries: 0 },
        PoolOptions { workers: 2, concurrency: 100, retries: 2 },
    ] {
        let (again, ..) = bench.run_trees(trees(), &options, seeded_reply);
        let reported = |all: &[Trajectory]| -> Vec<_> {
            all.iter().map(|t| (t.id.clone(), t.fork.clone(), t.total_reward(), t.steps.len())).collect()
        };
        assert_eq!(reported(&again), reported(&trajectories));
    }
}

#[test]
fn branches_start_from_the_states_that_the_recipe_selects() {
    let bench = Bench::new();
    let at = |branches, at, width, say: fn(&Request) -> (String, f32)| {
        forked_at(&bench.run_trees(vec![bench.tree(0, branches, at, width)], &one(), say).0)
    };
    // The states after 1 to 5 steps with the lowest log-probabilities of the root, the earlier of
    // equals; two branches each.
    let unsure = |request: &Request| {
        (format!("say {}", request.seed.trajectory), [-9.0, -1.0, -3.0, -2.0, -3.0, -1.0][request.seed.step as usize])
    };
    assert_eq!(at(3, BranchAt::Entropy, 1, unsure), [None, Some(2), Some(3), Some(4)]);
    assert_eq!(at(4, BranchAt::Entropy, 2, unsure), [None, Some(2), Some(2), Some(4), Some(4)]);
    assert_eq!(at(2, BranchAt::Entropy, 2, unsure), [None, Some(2), Some(2)]);
    // After these numbers of steps; a state that the root does not reach is left out.
    assert_eq!(at(3, BranchAt::Steps(vec![4, 1, 9]), 1, unsure), [None, Some(1), Some(4), Some(1)]);
    assert_eq!(at(2, BranchAt::FirstTool, 1, |request| calls(request.seed.step, 2)), [None, Some(3), Some(3)]);
    // No such state: the branches start from the beginning.
    assert_eq!(at(2, BranchAt::FirstTool, 1, |request| calls(request.seed.step, 9)), [None, None, None]);
    let quick = |request: &Request| (format!("stop {}", request.seed.trajectory), 0.0);
    assert_eq!(at(2, BranchAt::Random, 1, quick), [None, None, None]);
}

#[test]
fn branches_of_later_rounds_branch_off_branches() {
    let bench = Bench::new();
    let forks = |branches, at, width, rounds, say: fn(&Request) -> (String, f32)| -> Vec<Option<(u32, u32)>> {
        let tree = Tree { rounds, ..bench.tree(0, branches, at, width) };
        let (branched, _, mut over) = bench.run_trees(vec![tree], &one(), say);
        over.sort_unstable();
        assert_eq!(over, (0..=u64::from(branches)).collect::<Vec<_>>(), "each conversation is released once");
        let by_id: HashMap<&str, &Trajectory> = branched.iter().map(|t| (t.id.as_str(), t)).collect();
        let reported = branched.iter().map(|trajectory| {
            let Fork { parent, step } = trajectory.fork.as_ref()?;
            let (parent, at) = (by_id[parent.as_str()], *step as usize);
            assert_eq!(trajectory.steps[..at], parent.steps[..at]);
            assert_ne!(trajectory.steps[at].response_ids, parent.steps[at].response_ids);
            Some((parent.sample, *step))
        });
        reported.collect()
    };
    // The uncertainty of a reply, by trajectory and step: the root after 1 to 5 steps, then its
    // branches.
    let unsure = |request: &Request| {
        let sure = match (request.seed.trajectory, request.seed.step) {
            (0, 2) => -5.0,
            (0, 4) => -4.0,
            (1, 3) => -9.0,
            (2, 5) => -8.0,
            // The forked state and the states of the root are not offered by the branch.
            (1, 2) | (2, 1) => -99.0,
            _ => -1.0,
        };
        (format!("say {}", request.seed.trajectory), sure)
    };
    let entropy = |branches, width, rounds| forks(branches, BranchAt::Entropy, width, rounds, unsure);
    assert_eq!(entropy(2, 1, 1), [None, Some((0, 2)), Some((0, 4))]);
    assert_eq!(entropy(2, 1, 2), [None, Some((0, 2)), Some((1, 3))]);
    // Two, then one per round; states that were not chosen before remain available.
    assert_eq!(entropy(5, 1, 4)[1..], [(0, 2), (0, 4), (1, 3), (2, 5), (0, 1)].map(Some));
    assert_eq!(entropy(4, 2, 2), [None, Some((0, 2)), Some((0, 2)), Some((1, 3)), Some((1, 3))]);
    // A branch offers the steps of the list that it takes itself; if no new state is left, states
    // are used again.
    let steps = |list: &[u32], branches, rounds| forks(branches, BranchAt::Steps(list.to_vec()), 1, rounds, unsure);
    assert_eq!(steps(&[1, 3], 3, 3), [None, Some((0, 1)), Some((0, 3)), Some((1, 3))]);
    assert_eq!(steps(&[2], 2, 2), [None, Some((0, 2)), Some((0, 2))]);
    // The first call of a separate tool.
    let tools = |request: &Request| {
        let (trajectory, step) = (request.seed.trajectory, request.seed.step);
        let calls = u64::from(step) == 1 + 2 * trajectory;
        if calls { self::calls(step, step) } else { (format!("say {trajectory} {step}"), 0.0) }
    };
    assert_eq!(forks(2, BranchAt::FirstTool, 1, 2, tools), [None, Some((0, 2)), Some((1, 4))]);
    // Random states, in several rounds, independent of concurrency.
    let deep = |options: &PoolOptions| -> Vec<_> {
        let trees = (0..4).map(|group| Tree { rounds: 5, ..bench.tree(group, 5, BranchAt::Random, 1) }).collect();
        let (branched, ..) = bench.run_trees(trees, options, seeded_reply);
        branched.into_iter().map(|t| (t.id.clone(), t.fork.clone(), t.steps.len(), t.total_reward())).collect()
    };
    let branched = deep(&one());
    assert!(branched.iter().any(|(_, fork, ..)| fork.as_ref().is_some_and(|fork| !fork.parent.ends_with("-0"))));
    assert_eq!(deep(&PoolOptions { workers: 3, concurrency: 3, retries: 0 }), branched);
}

#[test]
fn uniform_branching_selects_every_state_equally_often() {
    let bench = Bench::new();
    let trees = (0..200).map(|group| {
        let mut tree = bench.tree(group % 4, 1, BranchAt::Random, 1);
        for (spec, sample) in [&mut tree.root].into_iter().chain(&mut tree.branches).zip(0..) {
            (spec.group, spec.seed.trajectory) = (group, group * 2 + sample);
        }
        tree
    });
    let long = |request: &Request| (format!("say {}", request.seed.trajectory), 0.0);
    let (trajectories, ..) = bench.run_trees(trees.collect(), &one(), long);
    let mut counts = [0; 6];
    for fork in trajectories.iter().filter_map(|trajectory| trajectory.fork.as_ref()) {
        counts[fork.step as usize] += 1;
    }
    // 200 branches over 5 states: 40 each, with a deviation of 5.7.
    assert!(counts[0] == 0 && counts[1..].iter().all(|count| (20..=60).contains(count)), "{counts:?}");
}

#[test]
fn a_failed_branch_is_retried_from_its_fork() {
    let bench = Bench::new();
    let tries = Mutex::new(0);
    let say = move |request: &Request| {
        let fails = request.seed.trajectory == 1 && request.seed.step == 4;
        let first = fails && std::mem::replace(&mut *lock(&tries), 1) == 0;
        (if first { "boom".to_owned() } else { format!("say {}", request.seed.trajectory) }, 0.0)
    };
    let (trajectories, requests, _) = bench.run_trees(vec![bench.tree(0, 1, BranchAt::Steps(vec![3]), 1)], &one(), say);
    assert_eq!((trajectories[1].status, trajectories[1].steps.len()), (Status::Truncated, 6));
    let steps: Vec<u32> =
        requests.iter().filter(|(conversation, _)| *conversation == 1).map(|(_, step)| *step).collect();
    assert_eq!(steps, [3, 4, 3, 4, 5]);
}

#[test]
fn a_tree_whose_root_fails_has_no_branches() {
    let bench = Bench::new();
    let say = |request: &Request| {
        let fails = request.seed.trajectory == 0 && request.seed.step == 3;
        (if fails { "boom".to_owned() } else { format!("say {}", request.seed.trajectory) }, 0.0)
    };
    let (trajectories, requests, over) = bench.run_trees(vec![bench.tree(0, 2, BranchAt::Random, 1)], &one(), say);
    assert_eq!(
        trajectories.iter().map(|t| t.status).collect::<Vec<_>>(),
        [Status::EnvError, Status::Truncated, Status::Truncated]
    );
    assert_eq!(forked_at(&trajectories), [None, None, None]);
    assert_eq!(requests.iter().filter(|(conversation, _)| *conversation == 0).count(), 8, "two tries of four steps");
    assert_eq!(over.iter().filter(|conversation| **conversation == 0).count(), 1);
}

#[test]
fn a_tree_without_branches_is_its_root() {
    let bench = Bench::new();
    let trees = (0..4).map(|group| bench.tree(group, 0, BranchAt::Random, 1)).collect();
    let (trajectories, requests, _) = bench.run_trees(trees, &one(), seeded_reply);
    assert_eq!(trajectories.len(), 4);
    for (group, trajectory) in trajectories.iter().enumerate() {
        let replies: Vec<String> = (0..6).map(|step| reply(group as u64 * 100, step).0).collect();
        let end = replies.iter().position(|text| text.starts_with("stop")).map_or(6, |last| last + 1);
        let texts: Vec<&str> = trajectory.steps.iter().map(|step| step.text.as_str()).collect();
        assert_eq!(texts, replies[..end], "{}", trajectory.id);
        assert_eq!((trajectory.id.as_str(), trajectory.fork.is_none()), (&*format!("1-{group}-0"), true));
    }
    assert_eq!(requests.len(), trajectories.iter().map(|t| t.steps.len()).sum::<usize>(), "each step is sampled once");
}

/// The patches of the steps make the state of the end, without the conversation.
#[test]
fn steps_record_their_times_and_the_changes_of_the_state() {
    let bench = Bench::new();
    let tree = bench.tree(1, 0, BranchAt::Random, 1);
    let (all, ..) = bench.run_trees(vec![tree], &PoolOptions::default(), seeded_reply);
    let one = &all[0];
    let mut state = one.initial_state.clone().unwrap();
    assert_eq!((&state["task"]["n"], state["draws"].as_array().unwrap().len()), (&serde_json::json!(2), 1));
    assert!(state.get("messages").is_none());
    for (step, number) in one.steps.iter().zip(2..) {
        let patch = step.state.clone().unwrap();
        let changed: Vec<&String> = patch.as_object().unwrap().keys().collect();
        assert_eq!(changed, ["draws"]);
        state["draws"] = patch["draws"].clone();
        assert_eq!(state["draws"].as_array().unwrap().len(), number);
        assert!(step.seconds.context > 0.0 && step.seconds.sampling > 0.0 && step.seconds.environment > 0.0);
    }
    let sum: f64 = one.steps.iter().map(|step| step.seconds.context + step.seconds.environment).sum();
    assert!(!one.steps.is_empty() && sum <= one.seconds, "{sum} of {}", one.seconds);
}
