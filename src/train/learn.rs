//! From trajectories to new weights, without a critic: rows, scores, advantages, optimiser steps. `r1 run` and the training loops
//! of programs (`r1.training`) both learn here.

use super::credit::{Credit, Ways, named};
use super::lesson::{self, Lesson, Scores};
use super::metrics;
use super::objective::Objective;
use super::parts::Parts;
use super::report;
use super::setup::Training;
use super::steps::Steps;
use super::update::{Update, UpdateStats};
use super::written::Learned;
use crate::config::Learner;
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::{Advantages, Need};
use crate::rl::rows::StepRow;
use crate::telemetry::Reporter;

/// How to learn from trajectories.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub(super) learner: &'a Learner,
    pub(super) objective: &'a Objective,
    pub(super) lr: f64,
    /// For each trajectory the advantages of each step's tokens, in place of the estimator's.
    pub(super) advantages: Option<&'a [Given]>,
}

/// Advantages of a trajectory that somebody else has computed.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(untagged)]
pub enum Given {
    /// Of all tokens.
    All(f64),
    Steps(Vec<GivenStep>),
}

/// Advantages of a step.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(untagged)]
pub enum GivenStep {
    All(f64),
    Tokens(Vec<f64>),
}

/// What was learned.
pub(super) struct Learnt<'a> {
    pub(super) learned: Learned<'a>,
    pub(super) lesson: Lesson,
    pub(super) scores: Scores,
    pub(super) credit: Credit,
    pub(super) updates: Vec<UpdateStats>,
    /// KL to the reference policy, where it was measured.
    pub(super) kl: Option<f64>,
}

/// Learns from `trajectories`: `epochs` passes in `mini_batches` optimiser steps each. Mini-batches hold whole trajectories.
/// Those that `companion` names are baselines for others and not learned from.
///
/// # Errors
/// `Kind::Interrupted` if the user wants the run to end at once; nothing was changed then.
pub(super) fn learn<'a>(
    it: &mut Training,
    trajectories: &'a [Trajectory],
    companion: &dyn Fn(usize) -> bool,
    how: How<'_>,
    reporter: &Reporter,
) -> Result<Learnt<'a>> {
    let How { learner, objective, lr, .. } = how;
    let temperature = it.session.settings.sampling.temperature;

    // Rows: steps merged on exact prefixes, and what reference and learner think of them.
    let learned = Learned::of(trajectories);
    let taught = learned.trajectories();
    let rows = lesson::rows(taught, companion)?;
    let scores =
        lesson::scores(&rows, it, learner, objective, temperature).map_err(|error| it.keep(error, trajectories))?;

    // Advantages. None for failures.
    let credit = credit(it, &learned, companion, how, |steps| scores.fill(steps, &rows))
        .map_err(|error| it.keep(error, trajectories))?;
    report::skipped(reporter, it.state.step + 1, credit.skipped.as_ref(), trajectories);
    let epochs = if credit.skipped.is_none() { learner.epochs } else { 0 };

    // Optimiser steps.
    let lesson = Lesson {
        advantages: credit.advantages(&rows),
        old: scores.old.clone(),
        reference: scores.reference.clone(),
        weights: scores.weights.clone(),
        rows,
        ..Lesson::default()
    };
    let lesson = lesson::for_custom(lesson, objective, taught);
    if !it.standing.update_begins() {
        return Err(Error::new(Kind::Interrupted, "stopped before the update"));
    }
    let bar = reporter.bar("training", (epochs * learner.mini_batches) as u64, "updates");
    let mut updates: Vec<UpdateStats> = Vec::new();
    for _ in 0..epochs {
        let mut parts = Parts::of(&lesson, learner, objective.together());
        while let Some(part) = parts.take() {
            let kl_coef = objective.loss_kl(it.kl.coef());
            let update = Update { model: &it.session.model, objective, learner, temperature, kl_coef, lr };
            let stepped = update.step(&mut it.optimizer, &part);
            let stats = stepped.map_err(|error| it.keep(named(error, trajectories), trajectories))?;
            report::skipped(reporter, it.state.step + 1, stats.skipped.as_ref(), trajectories);
            if stats.stepped {
                parts.updated(&part, &update)?;
                it.average()?;
                it.state.optimizer_step += 1;
            }
            updates.push(stats);
            bar.inc(1);
        }
    }
    bar.finish();
    report::refuse_mismatch(scores.mismatch(&updates).unwrap_or(0.0), learner.max_mismatch)
        .map_err(|error| it.keep(error, trajectories))?;
    // A penalty in the reward is measured where it acts, a term of the loss in the updates.
    let kl = match &objective.shaping.kl {
        Some(penalty) => credit.kl(penalty.kind),
        None => metrics::mean_kl(&updates),
    };
    if let Some(kl) = kl {
        it.kl.update(kl, trajectories.len());
    }
    Ok(Learnt { learned, lesson, scores, credit, updates, kl })
}

/// Advantages of trajectories as they are learned from: those that are given, or the estimator's, each trajectory against its
/// group. `fill` tells the estimator what models think of the tokens.
pub(super) fn credit(
    it: &mut Training,
    learned: &Learned<'_>,
    companion: &dyn Fn(usize) -> bool,
    how: How<'_>,
    fill: impl FnOnce(&mut Steps),
) -> Result<Credit> {
    let taught = learned.trajectories();
    let mut steps = Steps::of(taught, companion);
    if how.objective.needs(Need::Anchors) {
        steps.anchor(taught, &it.session.renderer);
    }
    if how.objective.needs(Need::Parts) {
        steps.parts(taught);
    }
    fill(&mut steps);
    let (shaping, mut returns) = (it.shaping(how.objective), it.returns);
    let ways = Ways { shaping: &shaping, returns: &mut returns, on_nan: how.learner.on_nan };
    let estimate = |rows: &[StepRow]| match how.advantages {
        Some(given) => given_advantages(rows, learned, given),
        None => it.advantages(how.objective, rows, taught),
    };
    let credit = Credit::assign(steps, ways, estimate, taught)?;
    it.returns = returns;
    Ok(credit)
}

/// Brings given advantages to the tokens of steps. A step that was written for the script has those of the step it was
/// written for.
fn given_advantages(rows: &[StepRow], learned: &Learned<'_>, given: &[Given]) -> Result<Advantages> {
    let mut found = Advantages::none(rows);
    for (place, row) in rows.iter().enumerate() {
        let trajectory = row.trajectory as usize;
        let wrong = |why: String| Err(Error::new(Kind::Usage, why).in_step(row.trajectory, row.step));
        let own = match given.get(trajectory) {
            None => continue,
            Some(Given::All(advantage)) => vec![*advantage; row.mask.len()],
            Some(Given::Steps(steps)) => match steps.get(learned.acted(trajectory, row.step as usize)) {
                Some(GivenStep::All(advantage)) => vec![*advantage; row.mask.len()],
                Some(GivenStep::Tokens(tokens)) if tokens.len() == row.mask.len() => tokens.clone(),
                Some(GivenStep::Tokens(tokens)) => {
                    return wrong(format!("{} advantages for {} sampled tokens", tokens.len(), row.mask.len()));
                }
                None => return wrong(format!("there are advantages for {} steps only", steps.len())),
            },
        };
        found.counted[place] = row.status.is_none_or(|status| !status.is_failure());
        if found.counted[place] {
            found.advantages[place] = own;
        }
    }
    found.share(rows);
    Ok(found)
}
