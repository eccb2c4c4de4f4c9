//! What training would make of a recipe's first group: its tokens, their masks and advantages, for people to look at.

use super::checked::{Checked, checked};
use super::collect::{Draw, Wants, collect};
use super::credit::{Credit, Ways};
use super::custom;
use super::lesson;
use super::score::sum_pi_squared;
use super::session::Session;
use super::source::model_dir;
use super::steps::Steps;
use super::written::Learned;
use super::{RunOptions, report};
use crate::config::{Filter, Learner, OnNan};
use crate::error::{Error, Kind, Result};
use crate::mdp::{ErrorRecord, Fork};
use crate::rl::advantages::Need;
use crate::script::{Script, Worker};
use crate::store::State;
use crate::telemetry::Reporter;

/// One token of a training row.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownToken {
    pub text: String,
    /// Trained on: the policy wrote it.
    pub sampled: bool,
    /// One that text never becomes, such as the end of a turn.
    pub special: bool,
    pub advantage: f64,
}

/// One trajectory as it would be trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownTrajectory {
    pub id: String,
    pub status: &'static str,
    pub reward: f64,
    pub steps: usize,
    /// What it was forked from; its shared steps are trained on there.
    pub fork: Option<Fork>,
    /// Why it failed, if it did.
    pub error: Option<ErrorRecord>,
    /// Rows of merged steps; none for a failure.
    pub rows: Vec<Vec<ShownToken>>,
}

/// Rolls out the first task's group and gives every token its advantage. A critic says 0, as it does in the first step.
pub fn masks(options: &RunOptions, reporter: &Reporter) -> Result<Vec<ShownTrajectory>> {
    let mut script = Script::load(&options.script, &options.overrides)?;
    let Checked { learner, objective, critic, warnings } = checked(&script)?;
    report::warn(reporter, &warnings);
    let learner = Learner { groups_per_step: 1, filter: Filter::default(), ..learner };
    let dir = model_dir(&script.settings.policy.model, options.fetching(reporter))?;
    let mut session = Session::open(&mut script, &dir, options.fetching(reporter))?;
    if session.rows.train.is_none() {
        return Err(Error::new(Kind::Data, "the recipe has no training data").at_path(&options.script));
    }
    let state = State { seed: script.settings.seed, ..State::default() };
    let wants = Wants { greedy: objective.needs(Need::Greedy), next_prompt: false };
    let collected = collect(&mut session, &learner, &state, wants, Draw::default(), reporter)?;
    let trajectories = &collected.trajectories;
    let learned = Learned::of(trajectories);
    let taught = learned.trajectories();
    let rows = lesson::rows(taught, |index| collected.is_companion(index))?;
    let mut steps = Steps::of(taught, |index| collected.is_companion(index));
    if objective.needs(Need::Anchors) {
        steps.anchor(taught, &session.renderer);
    }
    if objective.needs(Need::Parts) {
        steps.parts(taught);
    }
    if objective.needs(Need::Squares) {
        let (temperature, budget) = (script.settings.sampling.temperature, learner.tokens_per_batch);
        let squares = sum_pi_squared(&session.model, &rows, temperature, budget)?;
        steps.fill(&rows, &squares, |row| &mut row.sum_pi_squared);
    }
    let zeros: Vec<Vec<f32>> = rows.iter().map(|row| vec![0.0; row.len()]).collect();
    if critic {
        steps.fill(&rows, &zeros, |row| &mut row.values);
        for row in steps.rows.iter_mut().filter(|row| row.truncated) {
            row.next_value = Some(0.0);
        }
    }
    if objective.shaping.kl.is_some() {
        // Before the first update the policy is its reference.
        let own: Vec<Vec<f32>> = rows.iter().map(|row| row.logprobs.clone()).collect();
        steps.fill(&rows, &own, |row| &mut row.logp_ref);
    }
    let estimate = |steps: &[_]| match &objective.estimator {
        Some(estimator) => estimator.estimate(steps, false),
        None => custom::advantages(&Worker::new(&script, None)?, steps, taught, critic),
    };
    let ways = Ways { shaping: &objective.shaping, returns: &mut None, on_nan: OnNan::Stop };
    let credit = Credit::assign(steps, ways, estimate, taught)?;
    let advantages = credit.advantages(&rows);
    let tokenizer = session.renderer.tokenizer();
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
    for (row, advantages) in rows.iter().zip(&advantages) {
        let token = |(place, id): (usize, &u32)| ShownToken {
            text: tokenizer.decode(&[*id], false),
            sampled: row.loss_mask[place],
            special: tokenizer.decode(&[*id], true).is_empty(),
            advantage: advantages[place],
        };
        shown[row.trajectory].rows.push(row.ids.iter().enumerate().map(token).collect());
    }
    Ok(shown)
}
