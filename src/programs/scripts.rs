//! `r1.script` and `r1.rollout`: other scripts and their trajectories. The objects are in
//! `lua/rollout.lua`; this file runs their calls.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use mlua::{Function, Lua, Table, Value};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::call::{Held, call, directory, overrides, read, to_lua};
use super::model;
use super::open_model::OpenModel;
use crate::error::{Error, Kind, Result};
use crate::load::{Loaded, load_script};
use crate::mdp::{Completion, FinishReason, Policy, Seed, Split, Status, StreamSeed, ToolCall, Trajectory};
use crate::rollout::{self, Attempt, Reached, Spec, Stage, Stop};
use crate::script::named_models::SamplingFields;
use crate::script::runtime::bind::bind_async;
use crate::script::runtime::convert::{from_json, from_row};
use crate::script::runtime::host::Host;
use crate::script::{PolicyRequest, Record, SampledText, trajectory_table};
use crate::telemetry::Reporter;
use crate::text::Renderer;

const NAME: &str = "r1.script";

struct OpenScript {
    loaded: Loaded,
    /// Receives what the script logs.
    host: Rc<Host>,
    /// Number of forks of its trajectories.
    forks: Cell<u64>,
}

impl OpenScript {
    /// Shows what the script logged during a call.
    fn show_log(&self) {
        for line in self.loaded.worker.take_log() {
            self.host.log(line.place, line.text);
        }
    }
}

/// A trajectory that is open in a program.
struct OpenAttempt {
    script: Rc<OpenScript>,
    /// `None` while a call uses it.
    attempt: RefCell<Option<Attempt>>,
    texts: QueuedTexts,
}

/// Runs a function on the trajectory with exclusive access. A failure ends the trajectory if
/// `fails` is set.
async fn act_on<T: 'static>(
    lua: &Lua,
    open: &Held<OpenAttempt>,
    fails: bool,
    work: impl AsyncFnOnce(&OpenAttempt, Stage<'_>, &mut Attempt) -> Result<T, Stop> + 'static,
) -> mlua::Result<T> {
    let running = Rc::clone(&open.0);
    let result = call(lua, async move {
        let loaded = &running.script.loaded;
        let busy = || Error::new(Kind::Script, "another call is using the trajectory");
        let mut attempt = running.attempt.take().ok_or_else(busy)?;
        let record = attempt.state().record().clone();
        let work = work(&running, loaded.stage(), &mut attempt);
        let result = with_texts(&loaded.renderer, &running.texts, &record, work).await;
        if let Err(Stop::Failed(failure)) = &result
            && fails
        {
            attempt.fail(&loaded.worker, failure);
        }
        running.attempt.replace(Some(attempt));
        result.map_err(error)
    });
    let result = result.await;
    open.script.show_log();
    result
}

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>, reporter: &Reporter) -> mlua::Result<()> {
    let calls = lua.create_table()?;
    let (host, reporter) = (Rc::clone(host), reporter.clone());
    bind_async(lua, &calls, "open", move |lua, (path, settings, model): (String, Value, Option<Held<OpenModel>>)| {
        let (host, reporter, base) = (Rc::clone(&host), reporter.clone(), directory(&lua));
        async move {
            let overrides = overrides(&lua, NAME, &settings)?;
            let (path, loaded) = call(&lua, async move {
                open(Path::new(&path), &base, &overrides, model.as_ref().map(|model| &*model.dir), &reporter)
            })
            .await?;
            let (tools, format) = (loaded.worker.tools(), loaded.renderer.format().name());
            let about = to_lua(&lua, &json!({ "path": path, "tools": tools, "format": format }))?;
            Ok((lua.create_userdata(Held(Rc::new(OpenScript { loaded, host, forks: Cell::new(0) })))?, about))
        }
    })?;
    bind_async(lua, &calls, "rows", async |lua, (script, split): (Held<OpenScript>, Value)| {
        let split: Option<Split> = read(&lua, NAME, "split", &split)?;
        call(&lua, async move { Ok(script.loaded.worker.rows(split.unwrap_or_default())?.unwrap_or(0)) }).await
    })?;
    bind_async(lua, &calls, "row", async |lua, (script, row, split): (Held<OpenScript>, Value, Value)| {
        let (row, split): (u64, Option<Split>) = (read(&lua, NAME, "row", &row)?, read(&lua, NAME, "split", &split)?);
        from_row(&lua, &call(&lua, async move { script.loaded.worker.row(split.unwrap_or_default(), row) }).await?)
    })?;
    bind_async(
        lua,
        &calls,
        "reset",
        async |lua, (script, choice, texts): (Held<OpenScript>, Value, Option<Vec<String>>)| {
            let choice: TaskChoice = read(&lua, NAME, "task", &choice)?;
            let begun = Rc::clone(&script.0);
            let opened = call(&lua, async move { reset(begun, &choice, texts).await }).await;
            script.show_log();
            lua.create_userdata(Held(Rc::new(opened?)))
        },
    )?;
    bind_async(lua, &calls, "observe", async |lua, open: Held<OpenAttempt>| {
        let observed = act_on(&lua, &open, true, async |_, stage, attempt| {
            Ok(attempt.observe(stage).await?.map(|prompt| prompt.observation.clone()))
        });
        to_lua(&lua, &observed.await?)
    })?;
    bind_async(lua, &calls, "request", async |lua, open: Held<OpenAttempt>| {
        to_lua(&lua, &act_on(&lua, &open, true, next_request).await?)
    })?;
    bind_async(lua, &calls, "step", async |lua, (open, reply): (Held<OpenAttempt>, Value)| {
        let reply: ScriptedReply = read(&lua, NAME, "reply", &reply)?;
        to_lua(&lua, &act_on(&lua, &open, true, async |_, stage, attempt| step(stage, attempt, reply).await).await?)
    })?;
    bind_async(lua, &calls, "state", async |lua, open: Held<OpenAttempt>| {
        let copied =
            act_on(&lua, &open, true, async |_, _, attempt| Ok(attempt.state().snapshot()?["state"].take())).await?;
        from_json(&lua, &copied)
    })?;
    bind_async(lua, &calls, "reward", async |lua, open: Held<OpenAttempt>| {
        let (total, parts) = act_on(&lua, &open, false, reward).await?;
        Ok((total, to_lua(&lua, &parts)?))
    })?;
    bind_async(lua, &calls, "fork", async |lua, open: Held<OpenAttempt>| {
        let forked = act_on(&lua, &open, true, async |open, _, attempt| {
            open.script.forks.set(open.script.forks.get() + 1);
            let mut spec = attempt.spec().clone();
            spec.id = format!("{}+{}", spec.id, open.script.forks.get());
            let attempt = RefCell::new(Some(attempt.fork(spec)?));
            Ok(OpenAttempt { script: Rc::clone(&open.script), attempt, texts: open.texts.clone() })
        });
        lua.create_userdata(Held(Rc::new(forked.await?)))
    })?;
    bind_async(lua, &calls, "finish", async |lua, open: Held<OpenAttempt>| {
        from_json(&lua, &trajectory_table(&act_on(&lua, &open, true, finish).await?, true, false))
    })?;
    bind_async(lua, &calls, "run", async |lua, (script, model, tasks): (Held<OpenScript>, Held<OpenModel>, Value)| {
        let tasks: RolloutTasks = read(&lua, "r1.rollout", "", &tasks)?;
        let running = Rc::clone(&script.0);
        let all = call(&lua, async move { model.serve(tasks.run(&running, &model.client)).await }).await;
        script.show_log();
        from_json(&lua, &Json::Array(all?))
    })?;
    let model_of = lua.create_function(|_, value: Value| Ok(model::handle(&value)))?;
    let source = include_str!("../../lua/rollout.lua");
    let (open, rollout, script, attempt): (Function, Function, Table, Table) =
        lua.load(source).set_name("=[r1]").call((calls, model_of))?;
    for methods in [script, attempt] {
        methods.set_readonly(true);
    }
    r1.raw_set("script", open)?;
    r1.raw_set("rollout", rollout)
}

/// Loads a script; with the tokenizer of the directory `model`, if there is one.
fn open(
    path: &Path,
    base: &Path,
    overrides: &[String],
    model: Option<&Path>,
    reporter: &Reporter,
) -> Result<(PathBuf, Loaded)> {
    // From any directory, a test finds the script of its repository.
    let mut above = base.ancestors().map(|folder| folder.join(path));
    let path = if path.exists() { None } else { above.find(|path| path.exists()) }.unwrap_or_else(|| path.to_owned());
    let script = load_script(&path, overrides)?;
    let loaded = match model {
        Some(dir) => {
            let renderer = Arc::new(Renderer::load_styled(dir, &script.style()?)?);
            Loaded::with(script, renderer, 0)?
        }
        None => Loaded::new(script, reporter)?,
    };
    Ok((path, loaded))
}

/// A row of a dataset, or a task.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TaskChoice {
    split: Split,
    row: u64,
    task: Option<Json>,
    seed: Option<Seed>,
}

impl TaskChoice {
    fn task(&self, loaded: &Loaded) -> Result<Json> {
        match &self.task {
            Some(task) => Ok(task.clone()),
            None => loaded.worker.row(self.split, self.row),
        }
    }

    fn spec(&self, loaded: &Loaded) -> Spec {
        let mut spec = Spec::new(self.split, self.row, &loaded.script.settings);
        spec.env_seed = self.seed.map_or(spec.env_seed, |seed| seed.0);
        if loaded.max_context > 0 {
            spec.max_context = loaded.max_context;
        }
        spec
    }
}

/// A response, written by a program or sampled by a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptedReply {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<ToolCall>,
    finish_reason: Option<FinishReason>,
    /// The exact ids, if a model sampled them.
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Vec<f32>,
}

/// Trajectories to run with a model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RolloutTasks {
    tasks: Vec<TaskChoice>,
    samples: u32,
    #[serde(default)]
    sampling: SamplingFields,
    seed: Seed,
    branch: Option<Branching>,
}

/// Continuations of a trajectory from a step on.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Branching {
    step: usize,
    count: u32,
}

impl RolloutTasks {
    /// Runs the trajectories concurrently; the results as `r1.rollout` returns them.
    async fn run(self, script: &OpenScript, policy: &dyn Policy) -> Result<Vec<Json>> {
        let loaded = &script.loaded;
        let sampling = self.sampling.over(&loaded.script.settings.sampling)?;
        let sampling = Arc::new(sampling.with_stop(loaded.renderer.stop_strings()));
        let mut jobs = Vec::new();
        for (group, choice) in self.tasks.iter().enumerate() {
            for sample in 0..self.samples {
                let mut spec = choice.spec(loaded);
                spec.id = format!("{group}-{sample}");
                (spec.group, spec.sample) = (group as u64, sample);
                spec.seed =
                    StreamSeed { seed: self.seed.0, trajectory: u64::from(sample) << 32 | group as u64, step: 0 };
                spec.sampling = Arc::clone(&sampling);
                jobs.push(run_task(script.loaded.stage(), policy, choice.task(loaded)?, spec, self.branch));
            }
        }
        Ok(futures_util::future::try_join_all(jobs).await?.into_iter().flatten().collect())
    }
}

/// Runs one trajectory, or its continuations from a step on.
async fn run_task(
    stage: Stage<'_>,
    policy: &dyn Policy,
    task: Json,
    spec: Spec,
    branch: Option<Branching>,
) -> Result<Vec<Json>> {
    let shown = |trajectory: &Trajectory| trajectory_table(trajectory, true, false);
    let record = Record::live();
    let attempt = match Attempt::begin(stage, spec.clone(), task.clone(), &record).await {
        Ok(attempt) => attempt,
        Err(failure) => {
            let mut trajectory = rollout::never_begun(stage, &spec, task, &failure);
            trajectory.record = record.take();
            return Ok(vec![shown(&trajectory)]);
        }
    };
    let Some(Branching { step, count }) = branch else {
        return Ok(vec![shown(&rollout::go_on(stage, policy, attempt).await?)]);
    };
    let attempt = match rollout::go_to(stage, policy, attempt, step).await? {
        Reached::There(attempt) => attempt,
        Reached::Ended(trajectory) => return Ok(vec![shown(&trajectory)]),
    };
    let specs = (0..count).map(|number| {
        let mut branch = spec.clone();
        branch.id = format!("{}+{number}", spec.id);
        branch.seed.trajectory = spec.seed.trajectory ^ (u64::from(number) + 1) << 48;
        branch
    });
    let all = rollout::branch(stage, policy, &attempt, specs).await?;
    let numbered = all.iter().zip(0_u32..).map(|(trajectory, number)| {
        let mut shown = shown(trajectory);
        shown["branch"] = number.into();
        shown
    });
    Ok(numbered.collect())
}

/// Begins a trajectory; `texts` are those that `r1.generate` returns in it.
async fn reset(script: Rc<OpenScript>, choice: &TaskChoice, texts: Option<Vec<String>>) -> Result<OpenAttempt> {
    let (task, spec) = (choice.task(&script.loaded)?, choice.spec(&script.loaded));
    let texts: QueuedTexts = texts.map(|texts| Rc::new(RefCell::new(texts.into())));
    let record = Record::live();
    let begun = Attempt::begin(script.loaded.stage(), spec, task, &record);
    let begun = with_texts(&script.loaded.renderer, &texts, &record, begun).await;
    let attempt = RefCell::new(Some(begun.map_err(|failure| failure.error)?));
    Ok(OpenAttempt { script, attempt, texts })
}

/// The request for the next response of a model.
async fn next_request(_: &OpenAttempt, stage: Stage<'_>, attempt: &mut Attempt) -> Result<Json, Stop> {
    let Some(request) = attempt.request(stage).await? else { return Err(is_over(attempt)) };
    let sampling = request.sampling.as_ref().clone().with_stop(attempt.renderer(stage).stop_strings());
    Ok(json!({
        "prompt_ids": request.prompt_ids,
        "stop_ids": request.stop_ids,
        "seed": Seed(request.seed.seed),
        "sampling": sampling,
    }))
}

/// The reward if the trajectory ended here, and its parts.
async fn reward(
    _: &OpenAttempt,
    stage: Stage<'_>,
    attempt: &mut Attempt,
) -> Result<(f64, BTreeMap<String, f64>), Stop> {
    let reward = attempt.reward(stage).await?;
    let steps: f64 = attempt.trajectory().steps.iter().fold(0.0, |sum, step| sum + step.reward);
    Ok((steps + reward.total, reward.parts))
}

/// The result so far; the trajectory can be continued.
async fn finish(open: &OpenAttempt, stage: Stage<'_>, attempt: &mut Attempt) -> Result<Trajectory, Stop> {
    let mut last = attempt.fork(attempt.spec().clone())?;
    if last.failed().is_none() {
        let record = last.state().record().clone();
        match with_texts(&open.script.loaded.renderer, &open.texts, &record, last.finish(stage)).await {
            Err(Stop::Failed(failure)) => last.fail(&open.script.loaded.worker, &failure),
            other => other?,
        }
    }
    Ok(last.into_trajectory())
}

async fn step(stage: Stage<'_>, attempt: &mut Attempt, reply: ScriptedReply) -> Result<Json, Stop> {
    if attempt.failed().is_some() || attempt.over().is_some() || attempt.observe(stage).await?.is_none() {
        return Err(is_over(attempt));
    }
    let finish_reason = reply.finish_reason.unwrap_or(FinishReason::Stop);
    if let Some(token_ids) = reply.token_ids {
        attempt.act(stage, completion(token_ids, Some(reply.logprobs), finish_reason)).await?;
    } else if reply.calls.is_empty() {
        let completion = rollout::typed(stage, attempt, &reply.text, finish_reason)?;
        attempt.act(stage, completion).await?;
    } else {
        let (completion, action) = rollout::typed_calls(stage, attempt, &reply.text, reply.calls)?;
        attempt.take(stage, completion, action).await?;
    }
    Ok(stepped(attempt))
}

fn is_over(attempt: &Attempt) -> Stop {
    let status = attempt.failed().or(attempt.over()).map_or("", Status::name);
    let limit = attempt.trajectory().truncated_by.map_or_else(String::new, |limit| format!(" by {}", limit.name()));
    Error::new(Kind::Script, format!("the trajectory is over: {status}{limit}")).into()
}

/// The result of the last step.
fn stepped(attempt: &Attempt) -> Json {
    let status = attempt.over().map(Status::name);
    let (trajectory, done) = (attempt.trajectory(), status.is_some());
    let Some(step) = trajectory.steps.last() else { return json!({ "reward": 0, "done": done, "text": "" }) };
    json!({
        "reward": step.reward,
        "done": done,
        "status": status,
        "truncated_by": trajectory.truncated_by,
        "text": step.text,
        "tools": step.tools,
    })
}

/// The texts that `r1.generate` returns in a trajectory: one for each call, the last one also for
/// later calls. `None`: there is no policy.
type QueuedTexts = Option<Rc<RefCell<VecDeque<String>>>>;

/// Runs a part of a trajectory, and gives the texts that its script requests meanwhile.
async fn with_texts<T>(
    renderer: &Renderer,
    texts: &QueuedTexts,
    record: &Record,
    future: impl Future<Output = T>,
) -> T {
    let Some(texts) = texts else { return future.await };
    let (mut future, mut requests) = (pin!(future), record.listen());
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            Some(request) = requests.recv() => match request {
                PolicyRequest::Generate(request) => drop(request.reply.send(next_text(renderer, &mut texts.borrow_mut()))),
                PolicyRequest::Logprobs(request) => {
                    let error = Error::new(Kind::Script, "r1.logprobs: there is no policy here").hint("r1 repl has one");
                    let _ = request.reply.send(Err(error));
                }
            },
        }
    }
}

fn next_text(renderer: &Renderer, texts: &mut VecDeque<String>) -> Result<SampledText> {
    let text = if texts.len() > 1 { texts.pop_front() } else { texts.front().cloned() }.unwrap_or_default();
    let token_ids: Vec<u32> =
        renderer.tokenizer().encode(&text)?.into_iter().chain(renderer.stop_ids().first().copied()).collect();
    Ok(SampledText { prompt_ids: Vec::new(), completion: completion(token_ids, None, FinishReason::Stop), text })
}

/// Tokens that no policy sampled.
fn completion(token_ids: Vec<u32>, logprobs: Option<Vec<f32>>, finish_reason: FinishReason) -> Completion {
    Completion {
        logprobs: logprobs.unwrap_or_else(|| vec![0.0; token_ids.len()]),
        token_ids,
        finish_reason,
        ..Completion::default()
    }
}

fn error(stop: Stop) -> Error {
    match stop {
        Stop::Failed(failure) => failure.error,
        Stop::Fatal(error) => error,
    }
}
