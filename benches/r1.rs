//! r1's side of the measurements in `compare.py`: a name on a line of stdin, a JSON object on a
//! line of stdout.
//!
//! `just bench` runs it. `DIR/NAME.jsonl` is the workload: one trajectory per row, with a prompt
//! and the length of each response, so that both sides do the same work. `DIR/model` is the model
//! of both sides.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use r1::adamw::{self, AdamW};
use r1::config::Learner;
use r1::engine::{Engine, EngineClient, EngineOptions, TokenBytes, channel};
use r1::mdp::{Action, FinishReason, PendingReply, Policy, Request, Sampling, Scripted, StreamSeed, Trajectory};
use r1::model::Model;
use r1::rl::pack::put_advantages;
use r1::rollout::{Pool, PoolOptions, Spec, no_progress};
use r1::script::{Script, Split, Worker};
use r1::text::Renderer;
use r1::train::{AdvantageConfig, Objective, Shards, Update, compute_advantages, training_rows, training_steps};
use r1::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Trajectories per task.
const GROUP: usize = 8;

/// One trajectory of `NAME.jsonl`.
#[derive(Clone, Deserialize)]
struct Row {
    prompt: Vec<u32>,
    turns: Vec<Turn>,
}

/// A response length, then the ids that the environment adds.
#[derive(Clone, Deserialize)]
struct Turn {
    reply: usize,
}

/// A policy with fixed response lengths, by trajectory and step.
struct Cut {
    policy: EngineClient,
    rows: Arc<Vec<Row>>,
}

impl Policy for Cut {
    fn submit(&self, mut request: Request) -> PendingReply {
        let turn = &self.rows[request.seed.trajectory as usize].turns[request.seed.step as usize];
        request.sampling = Arc::new(Sampling { max_new_tokens: turn.reply, ..Sampling::default() });
        request.stop_ids = Arc::default();
        self.policy.submit(request)
    }

    fn release(&self, conversation: u64) {
        self.policy.release(conversation);
    }
}

/// Prompt tokens of a rollout.
#[derive(Serialize)]
struct Prompts {
    /// Tokens of all prompts.
    shown: u64,
    /// Tokens that are new in each step: the first prompt, the environment's tokens, and the last
    /// token of each response, which was sampled but not computed.
    new: u64,
    /// Computed tokens; fewer than the new ones if a group shares its prompt.
    computed: u64,
}

impl Prompts {
    fn of(trajectories: &[Trajectory], computed: u64) -> Result<Self> {
        let (mut shown, mut new) = (0, 0);
        for trajectory in trajectories {
            let mut shared = 0;
            for step in &trajectory.steps {
                shown += step.prompt_ids.len() as u64;
                new += (step.prompt_ids.len() - shared) as u64;
                shared = step.prompt_ids.len() + step.response_ids.len() - 1;
            }
        }
        if computed > new {
            return Err(internal(&format!("{computed} prompt tokens were computed, {new} of them new")));
        }
        Ok(Self { shown, new, computed })
    }
}

struct Bench {
    dir: PathBuf,
    model: Rc<Model>,
    renderer: Arc<Renderer>,
    engine: Engine,
    optimizer: AdamW,
    /// Number of measurements, so that each samples other tokens.
    round: u64,
}

fn main() -> Result<()> {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from).filter(|dir| dir.is_dir()) else {
        return Err(Error::new(Kind::Usage, "this is one side of a comparison").hint("run `just bench`"));
    };
    let mut bench = Bench::open(dir)?;
    println!("{}", json!({ "ready": true }));
    let mut prepared: Option<(String, Case)> = None;
    for line in std::io::stdin().lock().lines() {
        let name = line.map_err(|error| internal(&error))?;
        let case = match prepared.take() {
            Some((last, case)) if last == name => case,
            _ => bench.prepare(&name)?,
        };
        println!("{}", bench.measure(&case)?);
        prepared = Some((name, case));
    }
    Ok(())
}

/// A measurement with its loaded state.
enum Case {
    Sample(Arc<Vec<Row>>),
    Grpo(Arc<Vec<Row>>, Pool),
    EnvStep(Box<Worker>, tokio::runtime::Runtime),
    Trajectory(Pool),
}

impl Bench {
    fn open(dir: PathBuf) -> Result<Self> {
        let model = Rc::new(Model::load(&dir.join("model"), tch::Device::Cpu, tch::Kind::Float)?);
        let renderer = Arc::new(Renderer::load(&dir.join("model"), "hermes")?);
        let options = EngineOptions::sized(&model.config, model.cache_options(), 64, 0);
        let vocabulary = Arc::new(TokenBytes::new(renderer.tokenizer().token_bytes()));
        let engine = Engine::new(Rc::clone(&model), vocabulary, options)?;
        let optimizer = AdamW::new(model.parameters(), adamw::AdamWOptions::default())?;
        Ok(Self { dir, model, renderer, engine, optimizer, round: 0 })
    }

    fn prepare(&self, name: &str) -> Result<Case> {
        let data = self.dir.join(format!("{name}.jsonl"));
        Ok(match name {
            "sample_equal" | "sample_ragged" => Case::Sample(rows(&data)?),
            "grpo_equal" | "grpo_ragged" | "grpo_steps" => {
                Case::Grpo(rows(&data)?, self.pool("turns.lua", &[format!("data.train={}", data.display())])?)
            }
            "env_step" => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let worker = Worker::new(&script("chat.lua", &[])?, None)?;
                Case::EnvStep(Box::new(worker), runtime.map_err(|error| internal(&error))?)
            }
            "trajectory" => Case::Trajectory(self.pool("chat.lua", &[])?),
            _ => return Err(Error::new(Kind::Usage, format!("no measurement is called `{name}`"))),
        })
    }

    fn pool(&self, name: &str, overrides: &[String]) -> Result<Pool> {
        Pool::new(&script(name, overrides)?, &self.renderer, &PoolOptions::default())
    }

    fn measure(&mut self, case: &Case) -> Result<Value> {
        self.round += 1;
        self.engine.clear_cache()?;
        match case {
            Case::Sample(rows) => self.sample(rows),
            Case::Grpo(rows, pool) => self.grpo(rows, pool),
            Case::EnvStep(worker, runtime) => runtime.block_on(env_steps(worker)),
            Case::Trajectory(pool) => self.trajectories(pool),
        }
    }

    /// Responses to all prompts at once, directly from the engine.
    fn sample(&mut self, rows: &[Row]) -> Result<Value> {
        let begin = Instant::now();
        let (client, queue) = channel();
        let replies: Vec<_> = (0..)
            .zip(rows)
            .map(|(trajectory, row)| {
                client.submit(Request {
                    prompt_ids: row.prompt.clone(),
                    sampling: Arc::new(Sampling { max_new_tokens: row.turns[0].reply, ..Sampling::default() }),
                    stop_ids: Arc::default(),
                    seed: StreamSeed { seed: self.round, trajectory, step: 0 },
                    conversation: trajectory,
                    chat: None,
                })
            })
            .collect();
        drop(client);
        let stats = self.engine.serve(queue)?;
        let mut tokens = 0;
        for reply in replies {
            tokens += reply.blocking_recv().map_err(|error| internal(&error))??.token_ids.len();
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(json!({ "seconds": seconds, "tokens": tokens, "parts": { "model": stats.model_seconds } }))
    }

    /// One step as in `train/run/policy_loop.rs`, with the same functions: rollout through the
    /// script,
    /// rows, advantages, update.
    fn grpo(&mut self, prompts: &Arc<Vec<Row>>, pool: &Pool) -> Result<Value> {
        let begin = Instant::now();
        let (client, queue) = channel();
        let policy: Arc<dyn Policy> = Arc::new(Cut { policy: client, rows: Arc::clone(prompts) });
        let specs = (0..prompts.len()).map(|index| self.spec(index, index / GROUP)).collect();
        let pending = pool.start(&policy, specs, &no_progress())?;
        drop(policy);
        let stats = self.engine.serve(queue)?;
        let trajectories = pending.finish()?;
        let sampled = begin.elapsed().as_secs_f64();

        let learner = Learner::default();
        let objective = Objective::new(&learner, &Sampling::default(), false)?;
        let estimator = objective.estimator.as_ref().ok_or_else(|| internal(&"the recipe has no estimator"))?;
        let mut rows = training_rows(&learner, &trajectories, |_| false)?;
        let mut returns = None;
        let config = AdvantageConfig::new(estimator, objective.shaping.clone(), &mut returns);
        let mut steps = training_steps(&trajectories, |_| false);
        let advantages = compute_advantages(&mut steps, config, &trajectories)?;
        put_advantages(&mut rows, &steps, &advantages);
        let (objective, learner) = (&objective, &learner);
        let update = Update {
            model: &self.model,
            objective,
            learner,
            temperature: 1.0,
            kl_coef: 0.0,
            lr: 1e-6,
            shards: &Shards::default(),
        };
        update.step(&mut self.optimizer, &rows)?;
        let seconds = begin.elapsed().as_secs_f64();

        let lengths = |trajectory: &Trajectory| -> Vec<usize> {
            trajectory.steps.iter().map(|step| step.response_ids.len()).collect()
        };
        let wanted = |row: &Row| -> Vec<usize> { row.turns.iter().map(|turn| turn.reply).collect() };
        if !trajectories.iter().zip(prompts.iter()).all(|(trajectory, row)| lengths(trajectory) == wanted(row)) {
            let error = trajectories.iter().find_map(|trajectory| trajectory.error.clone());
            return Err(internal(&format!("responses have other lengths than requested; {error:?}")));
        }
        let tokens: usize = trajectories.iter().map(Trajectory::response_tokens).sum();
        let parts = json!({
            "model": stats.model_seconds, "idle": stats.idle_seconds, "sampling": sampled, "update": seconds - sampled,
        });
        let prompt = Prompts::of(&trajectories, stats.prefilled_tokens)?;
        Ok(json!({ "seconds": seconds, "tokens": tokens, "parts": parts, "prompt": prompt }))
    }

    /// Trajectories through the worker pool with a free policy: seconds per step.
    fn trajectories(&mut self, pool: &Pool) -> Result<Value> {
        let reply = self.renderer.tokenizer().encode("I would say that seventeen of them are left.")?;
        let policy: Arc<dyn Policy> = Arc::new(Scripted::new(move |_| reply.clone()));
        let begin = Instant::now();
        let specs = (0..64).map(|index| self.spec(index, index)).collect();
        let trajectories = pool.start(&policy, specs, &no_progress())?.finish()?;
        let seconds = begin.elapsed().as_secs_f64();
        let steps: usize = trajectories.iter().map(|trajectory| trajectory.steps.len()).sum();
        Ok(json!({ "seconds": seconds / steps as f64, "steps": steps }))
    }

    fn spec(&self, index: usize, group: usize) -> Spec {
        Spec {
            id: index.to_string(),
            split: Split::Train,
            task_index: index as u64,
            group: group as u64,
            sample: (index % GROUP) as u32,
            env_seed: index as u64,
            seed: StreamSeed { seed: self.round, trajectory: index as u64, step: 0 },
            sampling: Arc::default(),
            max_steps: Some(8),
            max_context: self.engine.capacity(),
            served: false,
            next_prompt: false,
        }
    }
}

/// Steps of `chat.lua` without policy and tokenizer: seconds per step, and its parts.
async fn env_steps(worker: &Worker) -> Result<Value> {
    let action = Action {
        text: "I would say that seventeen of them are left.".to_owned(),
        token_ids: (0..24).collect(),
        tool_calls: Vec::new(),
        errors: Vec::new(),
        finish_reason: FinishReason::Stop,
    };
    let task = worker.row(Split::Train, 0)?;
    let (mut step, mut observe, mut steps) = (0.0, 0.0, 0_u32);
    for seed in 0..250 {
        let state = worker.reset(&task, seed).await.map_err(|failure| failure.error)?;
        loop {
            let begin = Instant::now();
            black_box(worker.observe(&state, 1024).await.map_err(|failure| failure.error)?);
            let observed = Instant::now();
            let result = worker.step(&state, &action).await.map_err(|failure| failure.error)?;
            observe += (observed - begin).as_secs_f64();
            step += observed.elapsed().as_secs_f64();
            steps += 1;
            if result.done {
                break;
            }
        }
    }
    let each = |seconds: f64| seconds / f64::from(steps);
    Ok(json!({ "seconds": each(step), "parts": { "observe": each(observe) } }))
}

fn script(name: &str, overrides: &[String]) -> Result<Script> {
    Script::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("benches").join(name), overrides)
}

fn rows(path: &Path) -> Result<Arc<Vec<Row>>> {
    let text = std::fs::read_to_string(path).map_err(|error| internal(&error))?;
    let rows: Result<Vec<Row>, _> = text.lines().map(serde_json::from_str).collect();
    Ok(Arc::new(rows.map_err(|error| internal(&error))?))
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Internal, error.to_string())
}
