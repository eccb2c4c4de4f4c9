//! Supervised fine-tuning on the assistant tokens of conversations.
//!
//! A row of the dataset is `{ messages, tools?, format? }`. Its ids are made piece by piece exactly as a rollout would
//! (text::Renderer::supervised), so that what reinforcement learning sees later is what was trained here. The loss is
//! the mean negative log-probability of the masked-in tokens of the batch; rows are packed without padding.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use super::checkpoint::{Contents, load_optimizer};
use super::files::ModelFiles;
use super::idle::idle_settings;
use super::resume::{Opened, record};
use super::script_log::ScriptLog;
use super::{RunOptions, Summary, adapter, due, files, metrics, new_model, order, report, session, source};
use crate::config::{Sft, Trainer};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Message, Support};
use crate::model::{Model, Packed};
use crate::rl::adamw::{self, AdamW};
use crate::rl::pack::{MicroBatch, Row, micro_batches};
use crate::rl::schedule::{Decay, Schedule};
use crate::script::{Script, Split, Worker};
use crate::store::{RunDir, State};
use crate::telemetry::{Metrics, MetricsLog, Reporter};
use crate::text::{Format, Renderer};

/// Trains the recipe's policy on its demonstrations; returns what it came to.
pub fn run(options: &RunOptions, reporter: &Reporter) -> Result<Summary> {
    let started = Instant::now();
    let opened = Opened::new(options, reporter)?;
    let Trainer::Sft(sft) = opened.script.settings.trainer.clone() else {
        return Err(Error::new(Kind::Usage, "this recipe's trainer is not r1.sft")
            .at_path(&options.script)
            .hint(format!("run it with `r1 run {}`", options.script.display())));
    };
    let (checkpoint, base) = (opened.checkpoint().map(Path::to_owned), opened.base());
    let (mut state, origin) = (opened.state(), opened.model_origin());
    let Opened { mut script, options, resumed } = opened;
    let (options, goes_on) = (&options, resumed.is_some());
    check(&sft)?;
    report::warn(reporter, &idle_settings(&script)?);
    source::fetch_data(&script, options.fetching(reporter))?;
    let printed = ScriptLog::new(reporter);
    script.listen(printed.sink());
    let worker = Worker::new(&script, None)?;
    let rows = worker.rows(Split::Train)?.filter(|rows| *rows > 0).ok_or_else(|| {
        Error::new(Kind::Data, "the recipe has no training data")
            .at_path(&options.script)
            .hint("give `data = { train = … }` in the recipe, or data.train=FILE.jsonl on the command line")
    })?;
    let run = match resumed {
        Some(resumed) => resumed.run,
        None => RunDir::create(&options.runs_dir, &files::run_name(options, &script))?,
    };

    // The model: from the run's newest checkpoint, made new, or loaded.
    let policy = &script.settings.policy;
    let (dir, origin) = match (checkpoint.clone(), &policy.init) {
        (Some(path), _) => (path, origin),
        (None, Some(init)) => {
            let dir = run.path().join("init");
            new_model::make(&dir, init, &worker, rows, script.settings.seed, reporter)?;
            (dir, None)
        }
        (None, None) => {
            let dir = source::model_dir(&base.model, options.fetching(reporter))?;
            let origin = source::origin(&policy.model, &dir);
            (dir, Some(origin))
        }
    };
    record(&run, &script, &options.overrides, &source::origins(&script, origin)?, 0, state.step)?;
    report::literal_keys(reporter, &script);
    let merging = script.settings.checkpoint.merge;
    let seed = script.settings.seed;
    let (mut model, dir) = adapter::load_for_training(&dir, policy, merging, seed, options.fetching(reporter))?;
    model.set_checkpointing(sft.gradient_checkpointing);
    let model = Rc::new(model);
    let mut renderers = Renderers {
        // Of any format: what it shares with those of the rows is the tokenizer and the template.
        base: Renderer::load(&dir, Format::Answer)?,
        default: script.settings.env.format.clone(),
        loaded: HashMap::new(),
    };
    let files = ModelFiles::read(&dir)?.with_template_of(&renderers.base);
    let mut optimizer = AdamW::new(
        model.parameters(),
        adamw::Options { weight_decay: sft.weight_decay, betas: (0.9, 0.95), ..adamw::Options::default() },
    )?;
    if let Some(path) = &checkpoint {
        load_optimizer(&mut optimizer, path)?;
    }
    let mut log = MetricsLog::open(run.path(), goes_on.then_some(state.step))?;
    printed.open(run.path(), goes_on.then_some(state.step))?;
    report::opening_sft(reporter, &model, &run, rows, &sft);
    script.logged.iter().for_each(|line| printed.line(line));

    let most = session::context(policy, model.config.max_position_embeddings, reporter);
    let mut summary = Summary { run_dir: run.path().to_owned(), ..Summary::default() };
    let schedule =
        Schedule { base: sft.lr, warmup: sft.warmup, decay: Decay::Cosine { total: sft.steps, floor: sft.final_lr } };
    let bar = reporter.bar("training", sft.steps as u64, "steps");
    bar.inc(state.step);
    let mut seen_tokens = 0_usize;
    let save = |optimizer: &AdamW, state: &State| {
        let contents = Contents { model: &model, files: &files, optimizer, ema: None, state };
        contents.write(&run, script.settings.checkpoint.keep, |_| Ok(()))
    };
    while state.step < sft.steps as u64 {
        if options.interrupted() {
            summary.interrupted = true;
            break;
        }
        let step_started = Instant::now();
        printed.at(state.step + 1);
        let batch = batch(&worker, &mut renderers, &script, &state, &sft, rows, most)?;
        let lr = schedule.at(state.step as usize);
        let done = update(&model, &mut optimizer, &batch, &sft, lr)?;
        state.step += 1;
        state.optimizer_step += 1;
        state.policy_version += 1;
        state.data_position += sft.batch_size as u64;
        seen_tokens += done.tokens;
        let seconds = step_started.elapsed().as_secs_f64();
        let mut values = Metrics::new();
        metrics::supervised(&mut values, &done, lr, seconds);
        metrics::memory(&mut values, model.device());
        log.log(state.step, &values)?;
        bar.inc(1);
        bar.tokens(done.tokens as u64);
        if due(state.step, script.settings.checkpoint.every, sft.steps) {
            save(&optimizer, &state)?;
        }
        if state.step.is_multiple_of(20) || state.step == sft.steps as u64 {
            printed.settle()?;
            reporter.step(state.step, sft.steps as u64, &values);
        }
    }
    printed.settle()?;
    bar.finish();
    let checkpoint = save(&optimizer, &state)?;
    if let Some(out) = &options.out {
        let settings = &script.settings.checkpoint;
        files::export(&checkpoint, out, settings, model.kind(), options.fetching(reporter))?;
    }
    summary.checkpoint = Some(checkpoint);
    summary.steps = state.step as usize;
    summary.seconds = started.elapsed().as_secs_f64();
    report::closing_sft(reporter, &summary, seen_tokens, options);
    Ok(summary)
}

fn check(sft: &Sft) -> Result<()> {
    if sft.batch_size == 0 || sft.tokens_per_batch == 0 {
        return Err(Error::new(Kind::Script, "trainer.batch_size and tokens_per_batch must be at least 1")
            .hint("leave them out for the defaults"));
    }
    if !(sft.lr >= 0.0 && sft.lr.is_finite()) {
        return Err(Error::new(Kind::Script, format!("trainer.lr is {}", sft.lr)).hint("give a number from 0 up"));
    }
    Ok(())
}

/// One renderer per tool format, over the same tokenizer.
struct Renderers {
    base: Renderer,
    default: String,
    loaded: HashMap<String, Arc<Renderer>>,
}

impl Renderers {
    fn get(&mut self, format: Option<&str>) -> Result<Arc<Renderer>> {
        let name = format.unwrap_or(&self.default).to_owned();
        if let Some(renderer) = self.loaded.get(&name) {
            return Ok(Arc::clone(renderer));
        }
        let renderer = Arc::new(self.base.with_format(&name)?);
        self.loaded.insert(name, Arc::clone(&renderer));
        Ok(renderer)
    }
}

/// A dataset row as a conversation.
pub(super) struct Demonstration {
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Value>,
    pub(super) format: Option<String>,
}

impl Demonstration {
    pub(super) fn from_row(row: &Value, index: u64) -> Result<Self> {
        let place = format!("row {index} of data.train");
        let messages = row.get("messages").ok_or_else(|| {
            let columns: Vec<&str> = row.as_object().into_iter().flat_map(|map| map.keys().map(String::as_str)).collect();
            Error::new(Kind::Data, format!("the row has no column `messages` (it has {})", columns.join(", ")))
                .at(&place)
                .hint("r1.sft wants rows { messages = { … }, tools = …, format = … }; rename with columns = { messages = \"…\" }")
        })?;
        let messages: Vec<Message> = serde_json::from_value(messages.clone()).map_err(|error| {
            Error::new(Kind::Data, format!("`messages` is not a list of messages: {error}")).at(&place)
        })?;
        let tools = match row.get("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(tools)) => tools.clone(),
            Some(other) => {
                return Err(Error::new(Kind::Data, format!("`tools` must be a list, not {other}")).at(&place));
            }
        };
        let format = row.get("format").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { messages, tools, format })
    }
}

/// The rows of one optimiser step. A conversation longer than the model's context is an error, not a silent cut.
fn batch(
    worker: &Worker,
    renderers: &mut Renderers,
    script: &Script,
    state: &State,
    sft: &Sft,
    count: u64,
    longest: usize,
) -> Result<Vec<Row>> {
    let mut rows = Vec::with_capacity(sft.batch_size);
    for offset in 0..sft.batch_size as u64 {
        let index = order::shuffled(state.data_position + offset, count, script.settings.seed);
        let demonstration = Demonstration::from_row(&worker.row(Split::Train, index)?, index)?;
        let renderer = renderers.get(demonstration.format.as_deref())?;
        let place = format!("row {index} of data.train");
        rows.push(row(&demonstration, &renderer, longest, offset as usize).map_err(|error| error.at(place))?);
    }
    Ok(rows)
}

/// A conversation as a row whose assistant tokens are trained on. One that is longer than `longest` tokens is an error, not a
/// silent cut.
pub(super) fn row(
    demonstration: &Demonstration,
    renderer: &Renderer,
    longest: usize,
    trajectory: usize,
) -> Result<Row> {
    let made = renderer.supervised(&demonstration.messages, &demonstration.tools)?;
    if made.ids.len() > longest {
        let message = format!("the conversation has {} tokens and the model's context holds {longest}", made.ids.len());
        return Err(Error::new(Kind::Data, message).hint("shorten it or leave it out of the dataset"));
    }
    Ok(Row {
        logprobs: vec![0.0; made.ids.len()],
        steps: vec![0; made.ids.len()],
        ids: made.ids,
        loss_mask: made.mask,
        support: Support::default(),
        trajectory,
    })
}

/// What a supervised step did.
pub(super) struct SupervisedStats {
    /// Nats a trained token.
    pub(super) loss: f64,
    pub(super) grad_norm: f64,
    /// Tokens computed, and those trained on among them.
    pub(super) tokens: usize,
    pub(super) trained: usize,
}

/// Forward, loss, backward, one AdamW step.
pub(super) fn update(
    model: &Model,
    optimizer: &mut AdamW,
    rows: &[Row],
    sft: &Sft,
    lr: f64,
) -> Result<SupervisedStats> {
    let trained: usize = rows.iter().map(Row::sampled).sum();
    if trained == 0 {
        return Err(
            Error::new(Kind::Data, "no token of the batch is an assistant's").hint("check the roles of `messages`")
        );
    }
    optimizer.zero_grad();
    let (mut loss_sum, mut tokens) = (0.0, 0);
    let chunk = super::update::logprobs_at_once(model.config.vocab_size, model.device());
    for members in micro_batches(rows, sft.tokens_per_batch) {
        let batch = MicroBatch::new(rows, &members, |_, _| 0.0, model.device())?;
        let packed = Packed { ids: batch.ids, positions: batch.positions, lengths: batch.lengths };
        tokens += packed.ids.numel();
        let pass = model.learn(&packed)?;
        let hidden = pass.hidden().f_index_select(0, &batch.predict)?;
        let (logp, _) = model.logprobs(&hidden, &batch.targets, 1.0, chunk)?;
        // Divided by the tokens of the whole batch, so that micro-batches add up to its mean.
        let loss = logp.f_sum(tch::Kind::Float)?.f_div_scalar(-(trained as f64))?;
        let value = f64::try_from(&loss)?;
        if !value.is_finite() {
            return Err(Error::new(Kind::Numeric, format!("the loss is {value}"))
                .hint("the weights have not been changed; lower trainer.lr"));
        }
        pass.backward(&loss)?;
        loss_sum += value;
    }
    let grad_norm = optimizer.step(lr, sft.max_grad_norm)?;
    Ok(SupervisedStats { loss: loss_sum, grad_norm, tokens, trained })
}
