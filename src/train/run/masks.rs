//! The first group of a recipe as training rows: tokens, loss masks and advantages, for `r1 check`.

use serde::Serialize;

use super::collect::{Draw, collect};
use super::run_state::no_training_data;
use crate::config::{Filter, Learner, OnNan, Oversample, Sft, Trainer};
use crate::error::{Error, Kind, Result};
use crate::load::load_renderer;
use crate::load::load_script;
use crate::load::model_dir;
use crate::mdp::{ErrorRecord, Fork, Trajectory};
use crate::rl::advantages::AlgorithmNeed;
use crate::rl::pack::{Row, put_advantages};
use crate::script::{Script, Split, Worker};
use crate::store::RunProgress;
use crate::telemetry::Reporter;
use crate::text::Renderer;
use crate::train::learn::advantages::{AdvantageConfig, AdvantageSource, compute_advantages};
use crate::train::learn::custom_estimator::ScriptEstimator;
use crate::train::learn::generated::with_generated_steps;
use crate::train::learn::score::sum_pi_squared;
use crate::train::learn::stages::estimator_steps;
use crate::train::learn::training_rows::{set_column, training_rows};
use crate::train::options::RunOptions;
use crate::train::rows::demonstrations::Samples;
use crate::train::rules::validate::{ValidatedTrainer, validate};
use crate::train::shards::Shards;
use crate::train::start::session::Session;
use crate::train::watch::report;

/// One token of a training row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownToken {
    pub text: String,
    /// Sampled by the policy, and trained on.
    pub sampled: bool,
    /// A special token, such as the end of a turn.
    pub special: bool,
    pub advantage: f64,
}

/// One trajectory as it would be trained on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename = "trajectory")]
pub struct ShownTrajectory {
    pub id: String,
    pub status: &'static str,
    pub reward: f64,
    pub steps: usize,
    /// The trajectory that it was forked from, in which the shared steps are trained on.
    pub fork: Option<Fork>,
    /// The reason of the failure, if there is one.
    #[serde(skip)]
    pub error: Option<ErrorRecord>,
    /// Rows of merged steps; none for a failure.
    pub rows: Vec<Vec<ShownToken>>,
}

/// Rolls out the group of the first task and computes the advantage of every token. The values of a
/// critic are 0, as in the first step.
pub fn masks(options: &RunOptions, reporter: &Reporter) -> Result<Vec<ShownTrajectory>> {
    let mut script = load_script(&options.script, &options.overrides)?;
    if let Trainer::Sft(sft) = &script.settings.trainer {
        return examples(&script, sft, options, reporter);
    }
    let ValidatedTrainer { learner, objective, critic, warnings } = validate(&script)?;
    report::warn(reporter, &warnings);
    let learner = Learner { groups_per_step: 1, filter: Filter::default(), ..learner };
    let dir = model_dir(&script.settings.policy.model, options.fetching(reporter))?;
    let mut session = Session::open(&mut script, &dir, None, None, options.fetching(reporter))?;
    if session.rows.train.is_none() {
        return Err(no_training_data(options));
    }
    session.settings.rollout.oversample = Oversample::default();
    let state = RunProgress { seed: script.settings.seed, ..RunProgress::default() };
    let draw = Draw { greedy: objective.needs(AlgorithmNeed::Greedy), ..Draw::default() };
    let collected = collect(&mut session, &learner, &state, draw, reporter)?;
    let trajectories = &collected.trajectories;
    let all = with_generated_steps(trajectories);
    let mut rows = training_rows(&learner, &all, |index| index >= collected.baselines_from)?;
    if objective.needs(AlgorithmNeed::Squares) {
        let (temperature, budget) = (script.settings.sampling.temperature, learner.tokens_at_once());
        let squares = sum_pi_squared(&session.model, &rows, temperature, budget, &Shards::default())?;
        set_column(&mut rows, squares, |row| &mut row.sum_pi_squared);
    }
    for row in &mut rows {
        if critic {
            row.values = vec![0.0; row.len()];
        }
        if objective.shaping.kl.is_some() {
            // Before the first update the policy equals the reference policy.
            row.logp_ref.clone_from(&row.logprobs);
        }
    }
    let truncated = |one: &Trajectory| one.steps.last().is_some_and(|step| step.truncated);
    let next_values: Vec<_> = all.iter().map(|one| (critic && truncated(one)).then_some(0.0)).collect();
    let columns = (&rows[..], &next_values[..]);
    let mut steps = estimator_steps(&all, collected.baselines_from, columns, &objective, &session.renderer);
    let mut custom = None;
    let source = match &objective.estimator {
        Some(estimator) => AdvantageSource::Estimator(estimator),
        None => {
            AdvantageSource::Script(custom.insert(ScriptEstimator::new(&script, objective.function.clone(), critic)?))
        }
    };
    let config = AdvantageConfig {
        source,
        shaping: objective.shaping.clone(),
        returns: &mut None,
        given_returns: None,
        on_nan: OnNan::Stop,
    };
    let advantages = compute_advantages(&mut steps, config, &all)?;
    put_advantages(&mut rows, &steps, &advantages);
    let mut shown: Vec<ShownTrajectory> = trajectories
        .iter()
        .map(|trajectory| ShownTrajectory {
            id: trajectory.id.clone(),
            status: trajectory.status.name(),
            reward: trajectory.total_reward(),
            steps: trajectory.steps.len(),
            fork: trajectory.fork.clone(),
            error: trajectory.error.clone(),
            rows: Vec::new(),
        })
        .collect();
    for row in &rows {
        shown[row.trajectory].rows.push(tokens(&session.renderer, row));
    }
    Ok(shown)
}

fn tokens(renderer: &Renderer, row: &Row) -> Vec<ShownToken> {
    let tokenizer = renderer.tokenizer();
    let token = |(index, id): (usize, &u32)| ShownToken {
        text: tokenizer.decode(&[*id], false),
        sampled: row.loss_mask[index],
        special: tokenizer.decode(&[*id], true).is_empty(),
        advantage: row.advantages.get(index).copied().unwrap_or_default(),
    };
    row.ids.iter().enumerate().map(token).collect()
}

/// The first conversations of supervised training, in place of trajectories: without steps,
/// rewards and advantages.
fn examples(script: &Script, sft: &Sft, options: &RunOptions, reporter: &Reporter) -> Result<Vec<ShownTrajectory>> {
    const SHOWN: u64 = 4;
    let policy = &script.settings.policy;
    if policy.init.is_some() {
        return Err(Error::new(Kind::Usage, "the recipe makes a new model, whose tokenizer is trained with it")
            .at_path(&script.path)
            .hint("policy.model=DIR policy.init=null shows the tokens of a model that exists"));
    }
    let dir = model_dir(&policy.model, options.fetching(reporter))?;
    let renderer = load_renderer(&dir, &script.style()?, reporter)?;
    let worker = Worker::new(script, None)?;
    let base = Renderer::load_styled(&dir, &script.style()?)?;
    let mut samples = Samples::new(&worker, base, &script.settings.env.format, sft, usize::MAX);
    let rows = worker.rows(Split::Train)?.unwrap_or_default().min(SHOWN);
    let mut shown = Vec::new();
    for index in 0..rows {
        let Some(row) = samples.row(Split::Train, index)? else { continue };
        shown.push(ShownTrajectory {
            id: index.to_string(),
            status: "example",
            reward: 0.0,
            steps: 0,
            fork: None,
            error: None,
            rows: vec![tokens(&renderer, &row)],
        });
    }
    Ok(shown)
}
