//! r1's side of `scripts.py`: overhead of scripts. A name per line of stdin, a JSON object per line
//! of stdout.
//!
//! `scripts DIR`: DIR is a folder for modified files.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use r1::mdp::{Action, FinishReason, Limit, Observation, Policy, Scripted, Status, Step, Trajectory};
use r1::rollout::{Pool, PoolOptions, Spec, no_progress};
use r1::script::{Script, Split, TrajectoryOutcome, Watcher, WatcherOptions, Worker};
use r1::text::Renderer;
use r1::{Error, Kind, Result};
use serde_json::{Value, json};

/// Trajectories of FrozenLake.
const EPISODES: u64 = 10_000;
/// Trajectories that wait.
const WAITING: u64 = 1000;
/// Rounds of the loop.
const ROUNDS: u64 = 10_000_000;

fn main() -> Result<()> {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from).filter(|dir| dir.is_dir()) else {
        return Err(Error::new(Kind::Usage, "this is one side of a comparison").hint("run `just bench-scripts`"));
    };
    let renderer = Arc::new(Renderer::load(&root().join("models/r1-nano"), "retool")?);
    println!("{}", json!({ "ready": true }));
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| internal(&error))?;
        let answer = match line.as_str() {
            "frozen_lake" => frozen_lake()?,
            "rollout" => rollout(&renderer)?,
            "waiting" => waiting(&renderer)?,
            "reload" => reload(&dir, &renderer)?,
            "loop" => limited()?,
            "loop_free" => free()?,
            _ => return Err(Error::new(Kind::Usage, format!("no measurement is called `{line}`"))),
        };
        println!("{answer}");
    }
    Ok(())
}

/// A random policy: a linear congruential generator, as in the peer.
struct Dice(u64);

impl Dice {
    fn way(&mut self) -> usize {
        self.0 = (self.0.wrapping_mul(1_103_515_245) + 12345) & 0x7fff_ffff;
        (self.0 >> 16) as usize & 3
    }
}

/// Trajectories of FrozenLake on this thread: states, seeds, observations, step records and rewards
/// as in a run, without tokens.
fn frozen_lake() -> Result<Value> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| internal(&error))?;
    let script = Script::load(&root().join("benches/frozen_lake.lua"), &[])?;
    let worker = Worker::new(&script, None)?;
    runtime.block_on(async {
        let begin = Instant::now();
        let (mut steps, mut won) = (0_usize, 0.0);
        for seed in 0..EPISODES {
            let trajectory = episode(&worker, seed).await?;
            steps += trajectory.steps.len();
            won += trajectory.total_reward();
            black_box(trajectory);
        }
        Ok(json!({ "seconds": begin.elapsed().as_secs_f64(), "steps": steps, "won": won }))
    })
}

async fn episode(worker: &Worker, seed: u64) -> Result<Trajectory> {
    let task = worker.row(Split::Train, 0)?;
    let mut trajectory = Trajectory {
        id: format!("1-{seed}-0"),
        split: Split::Train,
        task_index: 0,
        task,
        group: seed,
        seed,
        script_hash: worker.hash().to_owned(),
        status: Status::Truncated,
        ..Trajectory::default()
    };
    let mut dice = Dice(seed);
    let state = worker.reset(&trajectory.task, seed).await.map_err(|failure| failure.error)?;
    let mut action = Action {
        text: String::new(),
        token_ids: Vec::new(),
        tool_calls: Vec::new(),
        errors: Vec::new(),
        finish_reason: FinishReason::Stop,
    };
    for _ in 0..100 {
        let shown = worker.observe(&state, 100).await.map_err(|failure| failure.error)?;
        let Observation::Text(shown) = shown else { return Err(internal(&"not a text")) };
        ["0", "1", "2", "3"][dice.way()].clone_into(&mut action.text);
        let result = worker.step(&state, &action).await.map_err(|failure| failure.error)?;
        trajectory.steps.push(Step {
            prompt_ids: shown.bytes().map(u32::from).collect(),
            text: action.text.clone(),
            reward: result.reward,
            terminated: result.done,
            tools: result.tools,
            new_row: true,
            ..Step::default()
        });
        if result.done {
            trajectory.status = Status::Terminated;
            break;
        }
    }
    let terminated = trajectory.status == Status::Terminated;
    let truncated_by = (!terminated).then_some(Limit::MaxSteps);
    let (text, steps) = (action.text, trajectory.steps.len());
    let outcome = TrajectoryOutcome {
        text,
        steps,
        terminated,
        truncated: !terminated,
        truncated_by,
        calls: 0,
        token_ids: Vec::new(),
    };
    trajectory.outcome_reward = worker.reward(&state, &outcome).await.map_err(|failure| failure.error)?.total;
    Ok(trajectory)
}

/// The same through a worker thread, with prompts and responses as tokens.
fn rollout(renderer: &Arc<Renderer>) -> Result<Value> {
    let script = Script::load(&root().join("benches/frozen_lake.lua"), &[])?;
    let pool = pool(&script, renderer, 128)?;
    let ways = ["0", "1", "2", "3"].map(|way| renderer.tokenizer().encode(way));
    let [a, b, c, d] = ways;
    let (ways, rolls) = ([a?, b?, c?, d?], AtomicU64::new(0));
    let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_| {
        ways[Dice(rolls.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9)).way()].clone()
    }));
    let begin = Instant::now();
    let specs = (0..EPISODES).map(|seed| spec(seed, &script)).collect();
    let trajectories = pool.start(&policy, specs, &no_progress())?.finish()?;
    let seconds = begin.elapsed().as_secs_f64();
    if let Some(error) = trajectories.iter().find_map(|trajectory| trajectory.error.as_ref()) {
        return Err(internal(error));
    }
    let steps: usize = trajectories.iter().map(|trajectory| trajectory.steps.len()).sum();
    Ok(json!({ "seconds": seconds, "steps": steps }))
}

/// Trajectories that all wait at the same time on one worker.
fn waiting(renderer: &Arc<Renderer>) -> Result<Value> {
    let script = Script::load(&root().join("benches/waiting.lua"), &[])?;
    let pool = pool(&script, renderer, WAITING as usize)?;
    let reply = renderer.tokenizer().encode("Yes.")?;
    let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_| reply.clone()));
    let begin = Instant::now();
    let specs = (0..WAITING).map(|seed| spec(seed, &script)).collect();
    let trajectories = pool.start(&policy, specs, &no_progress())?.finish()?;
    let seconds = begin.elapsed().as_secs_f64();
    if let Some(odd) = trajectories.iter().find(|trajectory| trajectory.status != Status::Terminated) {
        return Err(internal(&format!("{:?}", odd.error)));
    }
    Ok(json!({ "seconds": seconds, "steps": trajectories.len() }))
}

/// Reloads so far.
static TIMES: AtomicU64 = AtomicU64::new(0);

/// Time from writing a file until a trajectory uses it, while groups start continuously.
fn reload(dir: &Path, renderer: &Arc<Renderer>) -> Result<Value> {
    let path = dir.join("frozen_lake.lua");
    let text = std::fs::read_to_string(root().join("benches/frozen_lake.lua")).map_err(|error| internal(&error))?;
    let write =
        |version: u32| std::fs::write(&path, format!("{text}\n-- {version}\n")).map_err(|error| internal(&error));
    write(0)?;
    let script = Script::load(&path, &[])?;
    let pool = pool(&script, renderer, 1)?;
    let replacer = pool.replacer();
    let _watcher = Watcher::start(WatcherOptions {
        script: script.clone(),
        overrides: Vec::new(),
        renderer: Arc::clone(renderer),
        budget: 100,
        take: Box::new(move |reload| {
            replacer.replace(reload.script.clone());
            Ok(())
        }),
        refused: Box::new(|error| println!("{error}")),
        restored: Box::new(|_| ()),
    })?;
    let reply = renderer.tokenizer().encode("0")?;
    let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_| reply.clone()));
    // Long enough for the watcher to start, with a varying offset to its polls.
    std::thread::sleep(Duration::from_millis(500 + TIMES.fetch_add(1, Ordering::Relaxed) * 17 % 50));
    let begin = Instant::now();
    write(1)?;
    for seed in 0.. {
        let mut trajectories = pool.start(&policy, vec![spec(seed, &script)], &no_progress())?.finish()?;
        if trajectories.pop().is_some_and(|trajectory| trajectory.script_hash != script.hash) {
            break;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(json!({ "seconds": begin.elapsed().as_secs_f64() }))
}

/// The loop under the limits of a recipe.
fn limited() -> Result<Value> {
    let source = std::fs::read_to_string(root().join("benches/loop.lua")).map_err(|error| internal(&error))?;
    let file = tempfile::Builder::new().suffix(".lua").tempfile().map_err(|error| internal(&error))?;
    let recipe = format!(
        "{source}\nreturn r1.recipe {{ limits = {{ cpu = 1000 }}, data = {{ train = r1.data.generate {{ count = 1, \
         row = function() return {{ problem = \"\", sum = work({ROUNDS}) }} end }} }} }}"
    );
    std::fs::write(file.path(), recipe).map_err(|error| internal(&error))?;
    let worker = Worker::new(&Script::load(file.path(), &[])?, None)?;
    let begin = Instant::now();
    let row = worker.row(Split::Train, 0)?;
    Ok(json!({ "seconds": begin.elapsed().as_secs_f64(), "sum": row["sum"] }))
}

/// The loop in a virtual machine without limits.
fn free() -> Result<Value> {
    let source = std::fs::read_to_string(root().join("benches/loop.lua")).map_err(|error| internal(&error))?;
    let lua = mlua::Lua::new();
    let work: mlua::Function = lua.load(format!("{source}\nreturn work")).eval().map_err(|error| internal(&error))?;
    let begin = Instant::now();
    let sum: u64 = work.call(ROUNDS).map_err(|error| internal(&error))?;
    Ok(json!({ "seconds": begin.elapsed().as_secs_f64(), "sum": sum }))
}

fn pool(script: &Script, renderer: &Arc<Renderer>, concurrency: usize) -> Result<Pool> {
    Pool::new(script, renderer, &PoolOptions { workers: 1, concurrency, retries: 0 })
}

fn spec(seed: u64, script: &Script) -> Spec {
    Spec { group: seed, env_seed: seed, max_context: 512, ..Spec::new(Split::Train, 0, &script.settings) }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Internal, error.to_string())
}
