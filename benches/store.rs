//! r1's side of `store.py` (`just bench-store`): trajectories made for it, and times of writing.
//!
//! - `store generate DIR FILES`: the run `DIR/million` with FILES training steps of 50 groups of 8
//!   trajectories. A trajectory has 1 to 9 steps of 100 sampled tokens, so that 500 files have
//!   about a million steps.
//! - `store long DIR REPETITIONS`: writes 512 trajectories of 8 steps of 4,096 sampled tokens.
//! - `store again FILE DIR REPETITIONS`: writes the trajectories of a file of a run again.
//!
//! The last two print a JSON object per file written. Tokens have about Zipf's distribution, texts
//! have 4,000 different words; log-probabilities are random, so that they can't be compressed.

#![allow(clippy::print_stdout)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use r1::mdp::{FinishReason, Limit, Message, Split, Status, Step, ToolRecord, TrainedTokens, Trajectory};
use r1::store::{Configuration, RunDir, ScriptVersion, StepTasks, read_trajectories};
use r1::{Error, Kind, Result};
use serde_json::{Value, json};

/// The run that is generated, and its script.
const RUN: &str = "million";
const SCRIPT: &str = "-- Trajectories of `just bench-store`.\nreturn {}\n";
const HASH: &str = "3fa85f64c1d20b7e";

/// Different words and tokens, and tokens that the environment adds after a step.
const VOCABULARY: usize = 4000;
const TOKENS: f64 = 150_000.0;
const OBSERVED: usize = 30;

fn main() -> Result<()> {
    // `cargo bench` adds --bench.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |text: &String| text.parse::<u64>().map_err(|_| usage());
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate", dir, _] => generate(Path::new(dir), number(&arguments[2])?),
        ["long", dir, _] => {
            let shape = Shape { groups: 64, samples: 8, steps: 8..=8, response: 4096 };
            measure(&shape.trajectories(1), Path::new(dir), number(&arguments[2])?)
        }
        ["again", file, dir, _] => {
            measure(&read_trajectories(Path::new(file))?, Path::new(dir), number(&arguments[3])?)
        }
        _ => Err(usage()),
    }
}

fn usage() -> Error {
    Error::new(Kind::Usage, "this is a part of a measurement").hint("run `just bench-store`")
}

/// Writes the trajectories as a file, several times.
fn measure(trajectories: &[Trajectory], dir: &Path, repetitions: u64) -> Result<()> {
    let steps: Vec<&Step> = trajectories.iter().flat_map(|one| &one.steps).collect();
    let tokens: usize = steps.iter().map(|step| step.response_ids.len()).sum();
    // As in a run, whose next checkpoint syncs the directory.
    let run = RunDir::create(dir, "written")?;
    for _ in 0..repetitions {
        let started = Instant::now();
        let path = run.write_trajectories(1, 0, None, trajectories)?;
        let seconds = started.elapsed().as_secs_f64();
        let bytes = fs::metadata(&path).map_err(|error| failed("read", &path, &error))?.len();
        println!("{}", json!({ "seconds": seconds, "bytes": bytes, "tokens": tokens, "steps": steps.len() }));
    }
    fs::remove_dir_all(run.path()).map_err(|error| failed("remove", run.path(), &error))
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(Kind::Store, format!("can't {what} the file: {error}")).at_path(path)
}

/// Writes the run: two files at a time, a random stream for each.
fn generate(dir: &Path, files: u64) -> Result<()> {
    let run = RunDir::create(dir, RUN)?;
    let script =
        ScriptVersion { path: PathBuf::from("million.lua"), hash: HASH.to_owned(), ..ScriptVersion::default() };
    let configuration = Configuration {
        r1: env!("CARGO_PKG_VERSION").to_owned(),
        script,
        algorithm: "grpo".to_owned(),
        settings: json!({ "trainer": { "steps": files } }),
        ..Configuration::default()
    };
    run.write_recipe(configuration, SCRIPT, &[])?;
    let shape = Shape { groups: 50, samples: 8, steps: 1..=9, response: 100 };
    let write = |first: u64| -> Result<Vec<(u64, Value)>> {
        let steps = (first..=files).step_by(2).map(|step| {
            let trajectories = shape.trajectories(step);
            let tasks = StepTasks { position: (step - 1) * 50, rows: files * 50, ..StepTasks::default() };
            run.write_trajectories(step, step - 1, Some(&tasks), &trajectories)?;
            Ok((step, metrics(step, &trajectories)))
        });
        steps.collect()
    };
    let mut lines = thread::scope(|scope| {
        let running = [1, 2].map(|first| scope.spawn(move || write(first)));
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Vec<(u64, Value)>>>| {
            thread.join().unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a thread stopped")))
        };
        running.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?
    .concat();
    lines.sort_by_key(|(step, _)| *step);
    let path = run.path().join("metrics.jsonl");
    let mut text = Vec::new();
    lines.iter().try_for_each(|(_, line)| writeln!(text, "{line}")).map_err(|error| failed("write", &path, &error))?;
    fs::write(&path, text).map_err(|error| failed("write", &path, &error))
}

/// The line of a training step in metrics.jsonl.
fn metrics(step: u64, trajectories: &[Trajectory]) -> Value {
    let mean = |value: fn(&Trajectory) -> f64| trajectories.iter().map(value).sum::<f64>() / trajectories.len() as f64;
    json!({
        "step": step, "time": 1_764_000_000 + 60 * step, "reward/mean": mean(Trajectory::total_reward),
        "rollout/steps": mean(|one| one.steps.len() as f64), "time/step": 60.0,
    })
}

/// Numbers of the trajectories of a training step.
struct Shape {
    groups: u64,
    samples: u32,
    /// Fewest and most steps.
    steps: std::ops::RangeInclusive<u64>,
    /// Sampled tokens of a step.
    response: usize,
}

impl Shape {
    fn trajectories(&self, step: u64) -> Vec<Trajectory> {
        let mut draw = Draw::new(step);
        let mut all = Vec::new();
        for group in 0..self.groups {
            let (question, prompt) = (draw.text(40), draw.tokens(100));
            for sample in 0..self.samples {
                all.push(self.trajectory(&mut draw, [step, group, u64::from(sample)], &question, &prompt));
            }
        }
        all
    }

    fn trajectory(&self, draw: &mut Draw, numbers: [u64; 3], question: &str, prompt: &[u32]) -> Trajectory {
        let [step, group, sample] = numbers;
        let (first, last) = self.steps.clone().into_inner();
        let count = first + draw.below(last - first + 1);
        let is_truncated = draw.below(20) == 0;
        let mut prompt = prompt.to_vec();
        let mut messages =
            vec![Message::system("You are an agent with tools. Answer at the end."), Message::user(question)];
        let mut steps = Vec::new();
        for number in 1..=count {
            let is_last = number == count;
            let one = self.step(draw, &prompt, is_last && !is_truncated, is_last && is_truncated);
            messages.push(Message::assistant(one.text.as_str()));
            messages.extend(one.tools.iter().map(|tool| Message::tool(tool.output.as_str())));
            prompt.extend(one.response_ids.iter().copied().chain(draw.tokens(OBSERVED)));
            steps.push(one);
        }
        let outcome = draw.below(3) as f64 - 1.0;
        if let Some(end) = steps.last_mut() {
            end.reward += outcome;
        }
        Trajectory {
            id: format!("{step}-{group}-{sample}"),
            split: Split::Train,
            task_index: step * self.groups + group,
            task: json!({ "question": question, "level": group % 5 }),
            group,
            sample: sample as u32,
            seed: draw.next(),
            script_hash: HASH.to_owned(),
            status: if is_truncated { Status::Truncated } else { Status::Terminated },
            truncated_by: is_truncated.then_some(Limit::MaxSteps),
            seconds: 20.0 * draw.share(),
            steps,
            outcome_reward: outcome,
            reward_parts: [("accuracy", outcome.max(0.0)), ("format", draw.share())]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            messages,
            ..Trajectory::default()
        }
    }

    fn step(&self, draw: &mut Draw, prompt: &[u32], terminated: bool, truncated: bool) -> Step {
        let count = self.response;
        let tools = if terminated || truncated {
            Vec::new()
        } else {
            let arguments = json!({ "code": draw.text(15) });
            let (output, seconds) = (draw.text(20), draw.share());
            vec![ToolRecord {
                name: "python".to_owned(),
                arguments,
                output,
                ok: true,
                seconds,
                ..ToolRecord::default()
            }]
        };
        let logprobs: Vec<f32> = (0..count).map(|_| (-3.0 * draw.share()) as f32).collect();
        let advantage = draw.share() - 0.5;
        let trained = TrainedTokens {
            advantages: vec![advantage; count],
            learner_logprobs: logprobs.iter().map(|logprob| logprob + 0.05 * (draw.share() as f32 - 0.5)).collect(),
            entropies: (0..count).map(|_| (2.0 * draw.share()) as f32).collect(),
            loss_mask: vec![true; count],
            clipped: (0..count).map(|_| draw.below(20) == 0).collect(),
            ..TrainedTokens::default()
        };
        Step {
            prompt_ids: prompt.to_vec(),
            response_ids: draw.tokens(count),
            logprobs,
            // About three words to four tokens.
            text: draw.text(count * 3 / 4),
            finish_reason: FinishReason::Stop,
            terminated,
            truncated,
            tools,
            prefilled: OBSERVED as u32,
            trained,
            ..Step::default()
        }
    }
}

/// A xorshift generator, and a vocabulary from it.
struct Draw {
    state: u64,
    vocabulary: Vec<String>,
}

impl Draw {
    fn new(seed: u64) -> Self {
        let mut draw = Self { state: 42, vocabulary: Vec::new() };
        draw.vocabulary = (0..VOCABULARY)
            .map(|_| (0..2 + draw.below(7)).map(|_| char::from(b'a' + draw.below(26) as u8)).collect())
            .collect();
        draw.state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        draw
    }

    fn next(&mut self) -> u64 {
        for shift in [13, -7, 17_i32] {
            let shifted = if shift > 0 { self.state << shift } else { self.state >> -shift };
            self.state ^= shifted;
        }
        self.state
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    /// At least 0, below 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| (TOKENS.powf(self.share()) - 1.0) as u32).collect()
    }

    fn text(&mut self, count: usize) -> String {
        let mut text = String::new();
        for _ in 0..count {
            let word = ((VOCABULARY as f64).powf(self.share()) - 1.0) as usize;
            text.push_str(if text.is_empty() { "" } else { " " });
            text.push_str(&self.vocabulary[word]);
        }
        text
    }
}
