//! Supervised fine-tuning on the assistant tokens of conversations.
//!
//! A row of the dataset is a conversation (`mdp::Demonstration`). Its ids are encoded piece by
//! piece exactly as in a rollout (text::Renderer::supervised), so that reinforcement learning later
//! sees the same ids as this training. The loss is the mean negative log-probability of the
//! assistant's tokens of the batch; rows are packed without padding. docs/sft.md has the settings.

use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use crate::config::{Decay, Sft, Trainer};
use crate::error::{Error, Kind, Result};
use crate::load::{adapter, model_dir};
use crate::model::available_memory;
use crate::rl::adamw::{self, AdamW};
use crate::rl::pack::Row;
use crate::rl::schedule::Schedule;
use crate::script::{Split, Worker};
use crate::store::{BEST, RunDir, State};
use crate::telemetry::{Metrics, MetricsLog, Reporter};
use crate::text::{FormatChoice, Renderer, Style};
use crate::train::eval::held_out::{HeldOut, is_best, stops_early};
use crate::train::learn::supervised::update;
use crate::train::options::{RunOptions, Summary, due};
use crate::train::rows::demonstrations::Samples;
use crate::train::rows::order::Order;
use crate::train::rows::row_check::{self, RowCheck};
use crate::train::rows::selection::arranged;
use crate::train::rules::unused::unused_settings;
use crate::train::rules::validate::check_supervised;
use crate::train::start::checkpoint::{Contents, load_optimizer, with_kept};
use crate::train::start::context::{context, footprint};
use crate::train::start::files;
use crate::train::start::files::ModelFiles;
use crate::train::start::memory::with_micro_batches;
use crate::train::start::new_model;
use crate::train::start::origins;
use crate::train::start::resume::{Opened, record};
use crate::train::start::script_log::ScriptLog;
use crate::train::watch::metrics;
use crate::train::watch::report;
use crate::train::watch::report::Supervised;
use crate::train::watch::tensorboard;

/// Trains the recipe's policy on its demonstrations; returns a summary.
pub fn run(options: &RunOptions, reporter: &Reporter) -> Result<Summary> {
    let started = Instant::now();
    let opened = Opened::supervised(options, reporter)?;
    let Trainer::Sft(sft) = opened.script.settings.trainer.clone() else {
        return Err(Error::new(Kind::Usage, "this recipe's trainer is not r1.sft")
            .at_path(&options.script)
            .hint(format!("run it with `r1 run {}`, or give it a `cold_start`", options.script.display())));
    };
    let (checkpoint, base) = (opened.checkpoint().map(Path::to_owned), opened.base()?);
    let (repeats_from, same_script) = (opened.repeats_from(), opened.same_script());
    let (mut state, origin) = (opened.state(), opened.model_origin());
    let Opened { mut script, options, resumed, standing } = opened;
    let options = &options;
    check_supervised(&sft).map_err(|error| script.placed(error))?;
    report::warn(reporter, &unused_settings(&script)?);
    origins::fetch_data(&script, options.fetching(reporter))?;
    // Before the log of the script is connected: rows are read again when they are drawn.
    let row_check = RowCheck::start(&script, 0)?;
    let printed = ScriptLog::new(reporter);
    script.listen(printed.sink());
    let worker = Worker::new(&script, None)?;
    let rows = worker.rows(Split::Train)?.filter(|rows| *rows > 0).ok_or_else(|| {
        Error::new(Kind::Data, "the recipe has no training data")
            .at_path(&options.script)
            .hint("give `data = { train = … }` in the recipe, or data.train=FILE.jsonl on the command line")
    })?;
    row_check.wait(row_check::PATIENCE)?;
    // Datasets are mixed by their weights, as in reinforcement learning; a dataset without rows has
    // no weight.
    let mut parts = worker.parts(Split::Train)?;
    parts.retain(|part| part.rows > 0);
    let order = arranged(Order::new(&parts, &[])?, &worker, &script, options.fetching(reporter))?;
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
            let dir = model_dir(&base.model, options.fetching(reporter))?;
            let origin = origins::origin(&policy.model, &dir);
            (dir, Some(origin))
        }
    };
    let origins = origins::origins(&script, origin)?;
    record(&run, &script, &options.overrides, &origins, 0, state.step)?;
    report::literal_keys(reporter, &script);
    let merging = script.settings.checkpoint.merge;
    let seed = script.settings.seed;
    let (mut model, dir) = adapter::load_for_training(&dir, policy, merging, seed, options.fetching(reporter))
        .map_err(|error| adapter::placed(error, &script))?;
    model.set_checkpointing(sft.gradient_checkpointing);
    let (free, shape) = (available_memory(model.device()), footprint(&model, &script.settings));
    let Trainer::Sft(sft) = with_micro_batches(&shape, &script.settings, false, free).trainer else {
        return Err(Error::new(Kind::Internal, "the trainer has changed"));
    };
    let model = Rc::new(model);
    let most = context(policy, &model.config, reporter);
    // A renderer of any format: the renderers of the rows share its tokenizer and template.
    let base = Renderer::load_styled(&dir, &Style { format: FormatChoice::named("answer")?, ..script.style()? })?;
    let mut samples = Samples::new(&worker, base, &script.settings.env.format, &sft, most);
    let files = ModelFiles::read(&dir)?.with_template_of(samples.base());
    let eval = &script.settings.eval;
    let held_out = HeldOut::new(&worker, &mut samples, eval)?;
    let mut optimizer = AdamW::new(
        model.parameters(),
        adamw::Options { weight_decay: sft.weight_decay, betas: sft.betas, ..adamw::Options::default() },
    )?;
    if let Some(path) = &checkpoint {
        load_optimizer(&mut optimizer, path)?;
    }
    if repeats_from.is_some() {
        let keep = script.settings.checkpoint.keep;
        run.repeats_after(checkpoint.as_deref().map(|path| (state.step, path)), keep)?;
    }
    let mut log = MetricsLog::open(run.path(), repeats_from)?;
    tensorboard::settings(&mut log, &script)?;
    printed.open(run.path(), repeats_from, None)?;
    report::opening_sft(reporter, &model, &run, rows, &sft);
    report::far_files(reporter, &script, &origins);
    printed.top_level(&script.logged, same_script);

    let mut summary = Summary { run_dir: run.path().to_owned(), ..Summary::default() };
    let schedule =
        Schedule { base: sft.lr, warmup: sft.warmup, decay: Decay::Cosine, total: sft.steps, floor: sft.final_lr };
    let bar = reporter.bar("training", sft.steps as u64, "steps");
    bar.inc(state.step);
    let mut seen_tokens = 0_usize;
    let save = |optimizer: &AdamW, state: &State| {
        let contents = Contents { model: &model, files: &files, optimizer, ema: None, state };
        standing.saving(state.step, || contents.write(&run, script.settings.checkpoint.keep, |_| Ok(())))
    };
    let evaluate = |state: &mut State, values: &mut Metrics| -> Result<()> {
        let Some(held_out) = &held_out else { return Ok(()) };
        let started = Instant::now();
        let loss = held_out.loss(&model, sft.tokens_at_once())?;
        if is_best(state, loss) {
            run.best(|dir| {
                model.save_trained(dir)?;
                files.write(dir)
            })?;
        }
        held_out.report(state.step, loss, started.elapsed().as_secs_f64(), values, reporter);
        Ok(())
    };
    standing.opened(state.step, checkpoint.as_ref().map(|_| state.step), options.resume_command("sft", run.path()));
    // A run that was stopped before its first step has this loss in its checkpoint.
    if state.step == 0 && state.best.is_none() && held_out.is_some() {
        let mut values = Metrics::new();
        evaluate(&mut state, &mut values)?;
        log.log(0, &values)?;
    }
    while state.step < sft.steps as u64 && !stops_early(&sft, &state) {
        row_check.report(reporter);
        if standing.is_stopping() {
            summary.interrupted = true;
            break;
        }
        let step_started = Instant::now();
        printed.at(state.step + 1);
        let batch = match batch(&mut samples, &state, &sft, &order) {
            Ok(batch) => batch,
            Err(error) if state.step == 0 || standing.is_saved(state.step) => return Err(error),
            Err(error) => return Err(with_kept(error, state.step, save(&optimizer, &state))),
        };
        samples.report_hidden_tools(reporter);
        let lr = schedule.at(state.step as usize);
        if !standing.update_begins() {
            summary.interrupted = true;
            break;
        }
        let done = update(&model, &mut optimizer, &batch.rows, &sft, lr)?;
        state.step += 1;
        standing.step_is_done(state.step);
        state.optimizer_step += 1;
        state.policy_version += 1;
        state.data_position += batch.taken;
        seen_tokens += done.tokens;
        let seconds = step_started.elapsed().as_secs_f64();
        let mut values = Metrics::new();
        metrics::supervised(&mut values, &done, lr, seconds);
        values.set("sft/overlong", batch.too_long as f64);
        metrics::memory(&mut values, model.device());
        let last = state.step == sft.steps as u64;
        if last || due(state.step, eval.every, sft.steps) {
            evaluate(&mut state, &mut values)?;
        }
        log.log(state.step, &values)?;
        bar.inc(1);
        bar.tokens(done.tokens as u64);
        if due(state.step, script.settings.checkpoint.every, sft.steps) {
            save(&optimizer, &state)?;
        }
        if state.step.is_multiple_of(20) || last {
            printed.flush()?;
            reporter.step(state.step, sft.steps as u64, &values);
        }
    }
    printed.flush()?;
    bar.finish();
    let checkpoint = save(&optimizer, &state)?;
    summary.best = held_out.is_some().then(|| run.path().join(BEST));
    if let Some(out) = &options.out {
        let settings = &script.settings.checkpoint;
        let model_dir = summary.best.as_ref().unwrap_or(&checkpoint);
        let origin = origins.model.as_ref();
        files::export(model_dir, out, settings, model.kind(), origin, options.fetching(reporter))?;
    }
    summary.checkpoint = Some(checkpoint);
    summary.steps = state.step as usize;
    summary.seconds = started.elapsed().as_secs_f64();
    let stopped = stops_early(&sft, &state).then_some(sft.patience);
    report::closing_sft(reporter, &summary, &Supervised { tokens: seen_tokens, best: state.best, stopped }, options);
    report::overlong(reporter, samples.too_long, samples.longest(), sft.overlong);
    Ok(summary)
}

/// The conversations of one optimiser step.
struct Batch {
    rows: Vec<Row>,
    /// Number of rows drawn for it, including those left out.
    taken: u64,
    /// Conversations among them that are too long.
    too_long: u64,
}

/// Draws conversations until there are `trainer.batch_size`; a conversation that is left out is
/// replaced by the next one.
fn batch(samples: &mut Samples, state: &State, sft: &Sft, order: &Order) -> Result<Batch> {
    let (mut rows, mut taken, before) = (Vec::with_capacity(sft.batch_size), 0, samples.too_long);
    // One additional epoch: after it, it is known that no conversation fits.
    let most = sft.batch_size as u64 + order.rows();
    while rows.len() < sft.batch_size && taken < most {
        let index = order.at(state.data_position + taken, state.seed);
        taken += 1;
        if let Some(row) = samples.row(Split::Train, index)? {
            rows.push(Row { trajectory: rows.len(), ..row });
        }
    }
    if rows.is_empty() {
        let longest = samples.longest();
        return Err(Error::new(Kind::Data, format!("no conversation of data.train fits into {longest} tokens"))
            .hint("raise trainer.max_length or policy.max_context"));
    }
    Ok(Batch { rows, taken, too_long: samples.too_long - before })
}
