//! Group-relative policy optimisation over multi-step trajectories.
//!
//! Where this differs from the GRPO of arXiv:2402.03300:
//! 1. A trajectory has steps, each with its own prompt; steps that extend each other train as one row (token in, token
//!    out). Advantages compare trajectories of a group, never rows.
//! 2. The loss is PPO-clip with a mean over the sampled tokens of the batch (`trainer.loss_agg` chooses another).
//! 3. There is no KL term: the clip is the only leash.
//! 4. Behaviour log-probabilities are the sampler's own. Sampler and learner share weights and arithmetic; what
//!    difference is left is measured on every step (`mismatch/max_abs`).
//! 5. Failed trajectories (a tool or script that broke, not a wrong answer) are left out of statistics and loss.

use std::path::Path;
use std::time::Instant;

use super::evaluate::{evaluate, solved};
use super::session::Session;
use super::update::{UpdateStats, update};
use super::{RunOptions, Summary, due, files, metrics, order, report};
use crate::config::{Grpo, Trainer};
use crate::error::{Error, Kind, Result};
use crate::mdp::{Sampling, StreamSeed, Trajectory};
use crate::rl::adamw::{self, AdamW};
use crate::rl::advantages;
use crate::rl::pack::{self, Row};
use crate::rl::schedule::{Decay, Schedule};
use crate::rollout::Spec;
use crate::script::{Script, Split};
use crate::store::{Recipe, RunDir, State, latest_checkpoint};
use crate::telemetry::{Metrics, MetricsLog, Reporter};

/// Trains the recipe's policy; returns what it came to.
pub fn run(options: &RunOptions, reporter: &Reporter) -> Result<Summary> {
    let started = Instant::now();
    let script = Script::load(&options.script, &options.overrides)?;
    let Trainer::Grpo(grpo) = script.settings.trainer.clone() else {
        return Err(Error::new(Kind::Usage, "this recipe's trainer is r1.sft")
            .at_path(&options.script)
            .hint(format!("run it with `r1 sft {}`", options.script.display())));
    };
    check(&grpo, &script.settings.sampling)?;

    // A resumed run starts from its newest checkpoint, everything else from the recipe's model.
    let checkpoint = match &options.resume {
        Some(run) => latest_checkpoint(run)?.map(|(_, path)| path),
        None => None,
    };
    let mut policy = script.settings.policy.clone();
    if let Some(path) = &checkpoint {
        policy.model = path.display().to_string();
    }
    let mut session = Session::open(&script, &policy, options.fetching(reporter))?;
    let train_rows = session.pool.rows(Split::Train).filter(|rows| *rows > 0).ok_or_else(|| {
        Error::new(Kind::Data, "the recipe has no training data")
            .at_path(&options.script)
            .hint("give `data = { train = … }` in the recipe, or data.train=FILE.jsonl on the command line")
    })?;
    let mut optimizer = AdamW::new(
        session.model.parameters(),
        adamw::Options { weight_decay: grpo.weight_decay, ..adamw::Options::default() },
    )?;
    let mut state = State { seed: script.settings.seed, ..State::default() };
    if let Some(path) = &checkpoint {
        state = State::load(path)?;
        optimizer.load_state(files::read_tensors(&path.join(OPTIMIZER))?)?;
    }
    let run = match &options.resume {
        Some(path) => RunDir::open(path)?,
        None => RunDir::create(&options.runs_dir, &files::run_name(options, &script))?,
    };
    run.write_recipe(&Recipe {
        script: &options.script,
        source: &script.source,
        hash: &script.hash,
        settings: &script.settings,
        overrides: &options.overrides,
        libtorch: crate::native::libtorch_version(),
    })?;
    let mut log = MetricsLog::open(run.path(), options.resume.is_some().then_some(state.step))?;
    report::opening(reporter, &session, &run, train_rows, &grpo);

    let mut summary = Summary { run_dir: run.path().to_owned(), ..Summary::default() };
    let schedule = Schedule { base: grpo.lr, warmup: grpo.warmup, decay: Decay::Constant };
    if let Some((evaluation, trajectories)) = evaluate(&mut session, reporter, "before")? {
        report::evaluation(reporter, &mut log, state.step, "before", &evaluation)?;
        report::examples(reporter, "before", &trajectories);
        summary.before = Some(evaluation);
    }

    let mut curves = report::Curves::default();
    while state.step < grpo.steps as u64 {
        if options.interrupted() {
            summary.interrupted = true;
            break;
        }
        let step_started = Instant::now();
        let mut values = Metrics::new();

        // 1. Roll out: `groups_per_step` tasks, `group_size` tries each, with the current weights.
        session.engine.clear_cache();
        let specs = specs(&session, &grpo, &state, train_rows);
        let (trajectories, stats) = session.rollout(specs, reporter, "sampling")?;
        report::refuse_broken_env(&trajectories, session.settings.rollout.max_failure_rate)?;
        let sampling_seconds = step_started.elapsed().as_secs_f64();

        // 2. Advantages: each trajectory against its group. None for failures.
        let advantages = advantages::excluding_failures(&trajectories, |returns, groups| {
            advantages::grpo(returns, groups, grpo.normalize)
        })?;

        // 3. Rows: steps merged on exact prefixes. A trajectory without advantage has no row.
        let rows = rows(&trajectories, &advantages)?;
        let weights: Vec<f64> = advantages.iter().map(|advantage| advantage.unwrap_or(0.0)).collect();

        // 4. Update: `epochs` passes in `mini_batches` optimiser steps each. Mini-batches hold whole trajectories.
        let update_started = Instant::now();
        let lr = schedule.at(state.step as usize);
        let bar = reporter.bar("training", (grpo.epochs * grpo.mini_batches) as u64, "updates");
        let mut updates: Vec<UpdateStats> = Vec::new();
        for _ in 0..grpo.epochs {
            for mini_batch in split(&rows, grpo.mini_batches) {
                let temperature = session.settings.sampling.temperature;
                let stats = update(&session.model, &mut optimizer, &mini_batch, &weights, &grpo, temperature, lr)?;
                state.optimizer_step += 1;
                updates.push(stats);
                bar.inc(1);
            }
        }
        bar.finish();
        let training_seconds = update_started.elapsed().as_secs_f64();
        report::refuse_mismatch(&updates, grpo.max_mismatch)?;

        // 5. Records: first what was sampled, then the counters that say it is done.
        run.write_trajectories(state.step + 1, state.policy_version, &trajectories, &advantages)?;
        state.step += 1;
        state.data_position += grpo.groups_per_step as u64;
        state.policy_version += 1;
        let accuracy = &session.settings.eval.accuracy;
        metrics::rollout(&mut values, &trajectories, |trajectory| solved(trajectory, accuracy));
        metrics::update(&mut values, &updates, lr, state.policy_version);
        metrics::time(&mut values, &stats, &updates, sampling_seconds, training_seconds);
        values.set("time/step", step_started.elapsed().as_secs_f64());
        log.log(state.step, &values)?;
        curves.push(state.step, &values);
        reporter.step(state.step, grpo.steps as u64, &values);

        if due(state.step, session.settings.checkpoint.every, grpo.steps) {
            save(&run, &session, &optimizer, &state)?;
        }
        if due(state.step, session.settings.eval.every, grpo.steps) {
            session.engine.clear_cache();
            if let Some((evaluation, _)) = evaluate(&mut session, reporter, "held out")? {
                report::evaluation(reporter, &mut log, state.step, "held out", &evaluation)?;
            }
        }
    }

    let checkpoint = save(&run, &session, &optimizer, &state)?;
    if let Some(out) = &options.out {
        let settings = &script.settings.checkpoint;
        files::export(&checkpoint, out, settings, session.model.kind(), options.fetching(reporter))?;
    }
    session.engine.clear_cache();
    if !summary.interrupted
        && let Some((evaluation, trajectories)) = evaluate(&mut session, reporter, "after")?
    {
        report::evaluation(reporter, &mut log, state.step, "after", &evaluation)?;
        report::examples(reporter, "after", &trajectories);
        summary.after = Some(evaluation);
    }
    summary.checkpoint = Some(checkpoint);
    summary.steps = state.step as usize;
    summary.seconds = started.elapsed().as_secs_f64();
    report::closing(reporter, &summary, &curves, &options.script);
    Ok(summary)
}

const OPTIMIZER: &str = "optimizer.safetensors";

/// Contradictions are refused before anything runs.
fn check(grpo: &Grpo, sampling: &Sampling) -> Result<()> {
    let refuse = |message: String, hint: &str| Err(Error::new(Kind::Script, message).hint(hint));
    if grpo.group_size < 2 {
        return refuse(
            format!("trainer.group_size is {} and GRPO compares the trajectories of a group", grpo.group_size),
            "give at least 2, better 8",
        );
    }
    if grpo.groups_per_step == 0 || grpo.epochs == 0 || grpo.mini_batches == 0 || grpo.tokens_per_batch == 0 {
        return refuse(
            "trainer.groups_per_step, epochs, mini_batches and tokens_per_batch must be at least 1".to_owned(),
            "leave them out for the defaults",
        );
    }
    let trajectories = grpo.group_size * grpo.groups_per_step;
    if grpo.mini_batches > trajectories {
        return refuse(
            format!("trainer.mini_batches is {} and a step has {trajectories} trajectories", grpo.mini_batches),
            "give fewer mini-batches",
        );
    }
    if !(grpo.clip.0 > 0.0 && grpo.clip.0 < 1.0 && grpo.clip.1 > 0.0) {
        return refuse(
            format!("trainer.clip is {{ {}, {} }}", grpo.clip.0, grpo.clip.1),
            "both are above 0, the first below 1",
        );
    }
    if sampling.penalises() || !sampling.logit_bias.is_empty() {
        return refuse(
            "sampling.repetition_penalty and sampling.logit_bias sample from another distribution than the policy's, \
             which training can't score"
                .to_owned(),
            "leave them out; they are for `r1 infer` and `r1 lua`",
        );
    }
    if !(grpo.lr >= 0.0 && grpo.lr.is_finite()) {
        return refuse(format!("trainer.lr is {}", grpo.lr), "give a number from 0 up");
    }
    Ok(())
}

/// The trajectories of one step. Tasks are drawn without repetition within an epoch, in an order the seed decides.
fn specs(session: &Session, grpo: &Grpo, state: &State, rows: u64) -> Vec<Spec> {
    let sampling = session.with_stop(session.settings.sampling.clone());
    let mut specs = Vec::with_capacity(grpo.groups_per_step * grpo.group_size);
    for group in 0..grpo.groups_per_step as u64 {
        let position = state.data_position + group;
        let task_index = order::shuffled(position, rows, state.seed);
        for sample in 0..grpo.group_size as u32 {
            specs.push(Spec {
                id: format!("{}-{group}-{sample}", state.step + 1),
                split: Split::Train,
                task_index,
                group,
                sample,
                env_seed: state.seed ^ position.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                seed: StreamSeed {
                    seed: state.seed,
                    trajectory: position * grpo.group_size as u64 + u64::from(sample),
                    step: 0,
                },
                sampling: std::sync::Arc::clone(&sampling),
                max_steps: session.settings.env.max_steps,
                max_context: session.max_context,
            });
        }
    }
    specs
}

/// The rows of the trajectories that have an advantage, numbered by their place in `trajectories`.
fn rows(trajectories: &[Trajectory], advantages: &[Option<f64>]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        if advantages[index].is_some() {
            rows.extend(pack::merge(trajectory, index)?);
        }
    }
    Ok(rows)
}

/// Rows split into mini-batches, all rows of a trajectory in the same one.
fn split(rows: &[Row], parts: usize) -> Vec<Vec<Row>> {
    if parts == 1 {
        return vec![rows.to_vec()];
    }
    let mut split: Vec<Vec<Row>> = vec![Vec::new(); parts];
    for row in rows {
        split[row.trajectory % parts].push(row.clone());
    }
    split.retain(|part| !part.is_empty());
    split
}

fn save(run: &RunDir, session: &Session, optimizer: &AdamW, state: &State) -> Result<std::path::PathBuf> {
    run.checkpoint(state.step, session.settings.checkpoint.keep, |dir: &Path| {
        session.model.save_trained(dir)?;
        files::copy_text_files(&session.dir, dir)?;
        files::write_tensors(&dir.join(OPTIMIZER), &optimizer.state())?;
        state.save(dir)
    })
}
