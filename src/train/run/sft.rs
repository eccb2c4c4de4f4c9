//! Supervised fine-tuning on the assistant tokens of conversations.
//!
//! A row of the dataset is a conversation (`mdp::Demonstration`). Its ids are encoded piece by
//! piece exactly as in a rollout (text::Renderer::supervised), so that reinforcement learning later
//! sees the same ids as this training. The loss is the mean negative log-probability of the
//! assistant's tokens of the batch; rows are packed without padding. docs/guide/sft.md has the
//! settings.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::run_state::{RunState, no_training_data};
use crate::adamw::{self, AdamW};
use crate::config::{Decay, Sft, Trainer};
use crate::error::{Error, Kind, Result};
use crate::load::{adapter, attach_images, model_dir};
use crate::model::{Model, available_memory};
use crate::rl::pack::Row;
use crate::rl::schedule::Schedule;
use crate::script::{Split, Worker};
use crate::store::{BEST, IMAGES, Origins};
use crate::telemetry::{Bar, Metrics, Reporter};
use crate::text::{FormatChoice, Renderer, Style};
use crate::train::eval::held_out::{HeldOut, is_best, stops_early};
use crate::train::learn::supervised::update;
use crate::train::options::{RunOptions, Summary, checkpoint_due, due};
use crate::train::rows::demonstrations::Samples;
use crate::train::rows::order::Order;
use crate::train::rows::row_check::{PATIENCE, RowCheck};
use crate::train::rows::selection::arranged;
use crate::train::rules::unused::unused_settings;
use crate::train::rules::validate::check_supervised;
use crate::train::shards::{ShardSettings, Shards};
use crate::train::start::checkpoint::{Contents, OPTIMIZER, load_optimizer};
use crate::train::start::context::{context, footprint};
use crate::train::start::files::ModelFiles;
use crate::train::start::memory::with_micro_batches;
use crate::train::start::new_model;
use crate::train::start::origins;
use crate::train::start::resume::{StartState, record};
use crate::train::start::script_log::ScriptLog;
use crate::train::watch::metrics;
use crate::train::watch::report;

/// Trains the recipe's policy on its demonstrations; returns a summary.
pub fn run(options: &RunOptions, reporter: &Reporter) -> Result<Summary> {
    let started = Instant::now();
    let mut opened = StartState::supervised(options, reporter)?;
    let Trainer::Sft(sft) = opened.script.settings.trainer.clone() else {
        return Err(Error::new(Kind::Usage, "this recipe's trainer is not r1.sft")
            .at_path(&options.script)
            .hint(format!("run it with `r1 run {}`, or give it a `cold_start`", options.script.display())));
    };
    check_supervised(&sft).map_err(|error| opened.script.placed(error))?;
    report::warn(reporter, &unused_settings(&opened.script)?);
    origins::fetch_data(&opened.script, options.fetching(reporter))?;
    // Before the log of the script is connected: rows are read again when they are drawn.
    let row_check = RowCheck::start(&opened.script, 0)?;
    let printed = ScriptLog::new(reporter);
    opened.script.listen(printed.sink());
    let worker = Worker::new(&opened.script, None)?;
    let mut training = SupervisedTraining::open(opened, &worker, row_check, printed, reporter)?;
    let interrupted = match train(&mut training) {
        Err(error) if error.kind == Kind::Interrupted => true,
        trained => trained.map(|()| false)?,
    };
    training.close(interrupted, started)
}

fn train(training: &mut SupervisedTraining<'_>) -> Result<()> {
    training.evaluate_first()?;
    while !stops_early(&training.sft, &training.run.state) && training.run.goes_on(training.sft.steps)? {
        let batch = training.batch()?;
        let values = training.update(&batch)?;
        training.next_step(&batch, values)?;
        training.save_if_due()?;
    }
    Ok(())
}

/// The state of supervised training, read and changed by its operations.
struct SupervisedTraining<'a> {
    run: RunState,
    /// The settings, with the micro-batches that fit the device.
    sft: Sft,
    model: Rc<Model>,
    files: ModelFiles,
    optimizer: AdamW,
    /// How the processes of the run divide micro-batches.
    shards: Shards,
    order: Order,
    samples: Samples<'a>,
    held_out: Option<HeldOut>,
    row_check: RowCheck,
    /// The output of the script.
    printed: ScriptLog,
    bar: Bar,
    /// Tokens computed by this process.
    tokens: usize,
}

impl<'a> SupervisedTraining<'a> {
    fn open(
        opened: StartState,
        worker: &'a Worker,
        check: RowCheck,
        log: ScriptLog,
        reporter: &Reporter,
    ) -> Result<Self> {
        let (checkpoint, state) = (opened.checkpoint().map(Path::to_owned), opened.state());
        let StartState { script, options, .. } = &opened;
        let fetching = options.fetching(reporter);
        let rows = worker.rows(Split::Train)?.filter(|rows| *rows > 0).ok_or_else(|| no_training_data(options))?;
        check.wait(PATIENCE)?;
        // Datasets are mixed by their weights, as in reinforcement learning; a dataset without rows
        // has no weight.
        let mut parts = worker.parts(Split::Train)?;
        parts.retain(|part| part.rows > 0);
        let order = arranged(Order::new(&parts, &[])?, worker, script, fetching)?;
        let dir = opened.directory()?;

        // The model: from the run's newest checkpoint, made new, or loaded.
        let policy = &script.settings.policy;
        let (load_from, origin) = match (&checkpoint, &policy.init) {
            (Some(path), _) => (path.clone(), opened.model_origin()),
            (None, Some(init)) => {
                let made = dir.path().join("init");
                new_model::make(&made, init, worker, rows, script.settings.seed, reporter)?;
                (made, None)
            }
            (None, None) => {
                let directory = model_dir(&opened.base()?.model, fetching)?;
                let origin = origins::origin(&policy.model, &directory);
                (directory, Some(origin))
            }
        };
        let origins = Origins { fork: opened.fork_origin(), ..origins::origins(script, origin)? };
        record(&dir, script, &options.overrides, &origins, 0, state.step)?;
        report::literal_keys(reporter, script);
        for note in script.left_out_of_rows() {
            reporter.warn(&note);
        }
        let (merging, seed) = (script.settings.checkpoint.merge, script.settings.seed);
        let (mut model, load_from) = adapter::load_for_training(&load_from, policy, merging, seed, fetching)
            .map_err(|error| adapter::placed(error, script))?;
        model.set_checkpointing(script.settings.trainer.gradient_checkpointing());
        let (free, shape) = (available_memory(model.device()), footprint(&model, &script.settings));
        let Trainer::Sft(mut sft) = with_micro_batches(&shape, &script.settings, false, free).trainer else {
            return Err(Error::new(Kind::Internal, "the trainer has changed"));
        };
        // The number for the process with the least memory.
        sft.tokens_per_batch = options.ranks.largest(Reverse(sft.tokens_per_batch))?.0;
        let mut shards = Shards::new(&options.ranks, ShardSettings::from(&sft))?;
        options.ranks.require_same_weights(&model)?;
        let limit = context(policy, &model.config, reporter);
        // A renderer of any format: the renderers of the rows share its tokenizer and template.
        let style = Style { format: FormatChoice::named("answer")?, ..script.style()? };
        let base = Renderer::load_styled(&load_from, &style)?;
        attach_images(&base, &load_from)?;
        if let Some(images) = base.images() {
            images.read_from(&dir.path().join(IMAGES))?;
            if options.ranks.is_first() {
                images.store_in(&dir.path().join(IMAGES))?;
            }
            model.set_images(Arc::clone(images));
        }
        let mut samples = Samples::new(worker, base, &script.settings.env.format, &sft, limit);
        let files = ModelFiles::read(&load_from)?.with_template_of(&samples.base);
        let held_out = HeldOut::new(worker, &mut samples, &script.settings.eval)?;
        let Sft { weight_decay, betas, .. } = sft;
        let options = adamw::AdamWOptions { betas, weight_decay, ..adamw::AdamWOptions::default() };
        let mut optimizer = AdamW::new(model.parameters(), options)?;
        shards.divide(&mut optimizer, model.config.num_hidden_layers)?;
        if let Some(path) = &checkpoint {
            load_optimizer(&mut optimizer, path)?;
        }
        let (repeats_from, same_script) = (opened.repeats_from(), opened.same_script());
        let mut run = RunState::open(opened, dir, origins, reporter)?;
        if optimizer.is_divided() {
            run.divide_checkpoints(&mut shards)?;
        }
        log.open(run.dir.path(), repeats_from, None)?;
        report::opening_sft(reporter, &model, &run.dir, rows, (&sft, run.state.step));
        report::far_files(reporter, &run.script, &run.origins);
        log.top_level(&run.script.logged, same_script);
        let bar = reporter.bar("training", sft.steps as u64, "steps").resumed_after(run.state.step);
        run.begins(checkpoint.is_some(), "sft");
        Ok(Self {
            run,
            sft,
            model: Rc::new(model),
            files,
            optimizer,
            shards,
            order,
            samples,
            held_out,
            row_check: check,
            printed: log,
            bar,
            tokens: 0,
        })
    }

    /// The held-out loss of the initial model. A run that was stopped before its first step has it
    /// in its checkpoint.
    fn evaluate_first(&mut self) -> Result<()> {
        if self.run.state.step == 0 && self.run.state.best.is_none() && self.held_out.is_some() {
            let mut values = Metrics::new();
            self.evaluate(&mut values)?;
            self.run.log.log(0, &values)?;
        }
        Ok(())
    }

    /// Draws the conversations of a step: `trainer.batch_size` of them; a conversation that is left
    /// out is replaced by the next one.
    ///
    /// # Errors
    /// `Kind::Data` names a row that is not a conversation, and the checkpoint of the steps before.
    fn batch(&mut self) -> Result<ConversationBatch> {
        self.row_check.report(&self.run.reporter);
        let began = Instant::now();
        self.printed.at(self.run.state.step + 1);
        let batch = self.draw(began).map_err(|error| self.save_before(error))?;
        self.samples.report_hidden_tools(&self.run.reporter);
        Ok(batch)
    }

    fn draw(&mut self, began: Instant) -> Result<ConversationBatch> {
        let (size, before) = (self.sft.batch_size, self.samples.too_long);
        let (mut rows, mut taken) = (Vec::with_capacity(size), 0);
        // One additional epoch: after it, it is known that no conversation fits.
        let limit = size as u64 + self.order.rows();
        while rows.len() < size && taken < limit {
            let index = self.order.at(self.run.state.data_position + taken, self.run.state.seed);
            taken += 1;
            if let Some(row) = self.samples.row(Split::Train, index)? {
                rows.push(Row { trajectory: rows.len(), ..row });
            }
        }
        if rows.is_empty() {
            let longest = self.samples.longest;
            let key = |key| self.run.script.full_key(key);
            let message = format!("no conversation of {} fits into {longest} tokens", key("data.train"));
            let hint = format!("raise {} or policy.max_context", key("trainer.max_length"));
            return Err(Error::new(Kind::Data, message).hint(hint));
        }
        Ok(ConversationBatch { began, rows, taken, too_long: self.samples.too_long - before })
    }

    /// One optimiser step; returns its metrics.
    fn update(&mut self, batch: &ConversationBatch) -> Result<Metrics> {
        let Sft { lr: base, warmup, steps, final_lr, .. } = self.sft;
        let schedule = Schedule { base, warmup, decay: Decay::Cosine, total: steps, floor: final_lr };
        let lr = schedule.at(self.run.state.step as usize);
        self.run.begin_gradients()?;
        let (run, settings) = (&self.run, (&self.sft, &self.shards));
        let done = update(&self.model, &mut self.optimizer, &batch.rows, settings, lr, || run.writer.release())?;
        self.tokens += done.tokens;
        self.bar.tokens(done.tokens as u64);
        let mut values = Metrics::new();
        metrics::supervised(&mut values, &done, lr, batch.began.elapsed().as_secs_f64());
        Ok(values)
    }

    /// Ends a step: advances the counters, evaluates if it is time, writes the metrics.
    fn next_step(&mut self, batch: &ConversationBatch, mut values: Metrics) -> Result<()> {
        let state = &mut self.run.state;
        state.step += 1;
        state.optimizer_step += 1;
        state.policy_version += 1;
        state.data_position += batch.taken;
        let step = state.step;
        self.run.standing.step_is_done(step);
        values.set("sft/overlong", batch.too_long as f64);
        metrics::memory(&mut values, self.model.device());
        self.run.writer.report(&mut values);
        self.run.options.ranks.log(&mut values);
        let last = step == self.sft.steps as u64;
        if last || due(step, self.run.script.settings.eval.every, self.sft.steps) {
            self.evaluate(&mut values)?;
        }
        self.run.log.log(step, &values)?;
        self.bar.inc(1);
        if step.is_multiple_of(20) || last {
            self.printed.flush()?;
            self.run.reporter.step(step, self.sft.steps as u64, &values);
        }
        Ok(())
    }

    /// Computes the held-out loss, and saves the model if it is the lowest so far.
    fn evaluate(&mut self, values: &mut Metrics) -> Result<()> {
        let Some(held_out) = &self.held_out else { return Ok(()) };
        let started = Instant::now();
        let loss = held_out.loss(&self.model, self.sft.tokens_at_once(), &self.shards)?;
        if is_best(&mut self.run.state, loss) && self.run.writes() {
            self.run.dir.best(|dir| {
                self.model.save_trained(dir)?;
                self.files.write(dir)
            })?;
        }
        held_out.report(self.run.state.step, loss, started.elapsed().as_secs_f64(), values, &self.run.reporter);
        Ok(())
    }

    /// Writes a checkpoint, unless the newest one is of this step already.
    fn save(&self) -> Result<PathBuf> {
        self.run.save(self.contents()?)
    }

    /// Saves the trained weights before a run ends with an error before an update. A state that is
    /// divided is not complete here.
    fn save_before(&self, error: Error) -> Error {
        if self.optimizer.is_divided() { error } else { self.run.with_saved(error, || self.save()) }
    }

    fn contents(&self) -> Result<Contents<'_>> {
        let Self { run, model, files, .. } = self;
        let optimizers = vec![self.shards.state(OPTIMIZER, "the optimiser state", &self.optimizer)?];
        Ok(Contents { model, files, optimizers, ema: None, state: &run.state, more: Vec::new() })
    }

    /// Begins the checkpoint of every `checkpoint.every` steps. The optimiser step of the next
    /// update waits until its tensors are read.
    fn save_if_due(&self) -> Result<()> {
        if checkpoint_due(self.run.state.step, &self.run.script.settings.checkpoint, self.sft.steps) {
            self.run.options.ranks.require_same_weights(&self.model)?;
            self.run.begin_save(self.contents()?)?;
        }
        Ok(())
    }

    /// Writes the last checkpoint and the export, and prints the closing lines.
    fn close(self, interrupted: bool, started: Instant) -> Result<Summary> {
        self.printed.flush()?;
        self.bar.finish();
        let checkpoint = self.save()?;
        let Self { run, sft, samples, .. } = &self;
        let best = self.held_out.is_some().then(|| run.dir.path().join(BEST));
        run.export(best.as_ref().unwrap_or(&checkpoint), run.options.out.as_deref(), self.model.kind())?;
        let summary = Summary {
            run_dir: run.dir.path().to_owned(),
            checkpoint: Some(checkpoint),
            steps: run.state.step as usize,
            seconds: started.elapsed().as_secs_f64(),
            best,
            interrupted,
            ..Summary::default()
        };
        let stopped = stops_early(sft, &run.state).then_some(sft.patience);
        let steps = (run.state.step - run.began_after) as usize;
        let done = report::SupervisedReport { steps, tokens: self.tokens, best: run.state.best, stopped };
        report::closing_sft(&run.reporter, &summary, &done, &run.options);
        report::overlong(&run.reporter, &run.script, (samples.too_long, samples.longest), sft.overlong);
        Ok(summary)
    }
}

/// The conversations of one optimiser step.
struct ConversationBatch {
    began: Instant,
    rows: Vec<Row>,
    /// Number of rows drawn for it, including those left out.
    taken: u64,
    /// Conversations among them that are too long.
    too_long: u64,
}
