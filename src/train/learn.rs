//! From trajectories to new weights: rows, scores, values, advantages, optimiser steps of the policy and of the critic, if
//! there is one. `r1 run` and the training loops of programs (`r1.training`) both learn here.

use super::credit::{Credit, Ways, named};
use super::lesson::{self, Lesson, Scores};
use super::metrics;
use super::objective::Objective;
use super::parts::Parts;
use super::report;
use super::setup::Training;
use super::steps::Steps;
use super::update::{Update, UpdateStats};
use super::value::CriticStats;
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
    /// The same of returns, which the critic learns to predict.
    pub(super) returns: Option<&'a [Given]>,
    /// Whether the policy learns; else the critic alone does.
    pub(super) policy: bool,
}

impl<'a> How<'a> {
    /// As the recipe says.
    pub(super) fn new(learner: &'a Learner, objective: &'a Objective, lr: f64) -> Self {
        Self { learner, objective, lr, advantages: None, returns: None, policy: true }
    }
}

/// Advantages or returns of a trajectory that somebody else has computed.
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
    pub(super) critic_updates: Vec<CriticStats>,
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
    let rows = lesson::rows_for(learner, taught, companion)?;
    let scores =
        lesson::scores(&rows, it, learner, objective, temperature).map_err(|error| it.keep(error, trajectories))?;

    // What the critic says of the states before it learns from them.
    let tokenizer = it.session.renderer.tokenizer();
    let values = it.critic.as_ref().map(|critic| critic.values(&it.session.model, &rows, taught, tokenizer, learner));
    let values = values.transpose().map_err(|error| it.keep(error, trajectories))?;

    // Advantages, and the critic's targets. None for failures.
    let fill = |steps: &mut Steps| {
        scores.fill(steps, &rows);
        if let Some(values) = &values {
            values.fill(steps, &rows);
        }
    };
    let credit = credit(it, &learned, companion, how, fill).map_err(|error| it.keep(error, trajectories))?;
    report::skipped(reporter, it.state.step + 1, credit.skipped.as_ref(), trajectories);
    let epochs = if credit.skipped.is_none() { learner.epochs } else { 0 };

    // Optimiser steps.
    let lesson = Lesson {
        advantages: credit.advantages(&rows),
        old: scores.old.clone(),
        reference: scores.reference.clone(),
        weights: scores.weights.clone(),
        targets: values.map(|values| values.targets(&credit, &rows)),
        rows,
        ..Lesson::default()
    };
    let lesson = lesson::for_custom(lesson, objective, taught);
    if !it.standing.update_begins() {
        return Err(Error::new(Kind::Interrupted, "stopped before the update"));
    }
    let bar = reporter.bar("training", (epochs * learner.mini_batches) as u64, "updates");
    let warming = it.critic.is_some() && it.state.step < learner.critic.warmup as u64;
    let learns = how.policy && !warming;
    let mut updates: Vec<UpdateStats> = Vec::new();
    let mut critic_updates: Vec<CriticStats> = Vec::new();
    for _ in 0..epochs {
        let mut parts = Parts::of(&lesson, learner, objective.together());
        while let Some(part) = parts.take() {
            let kl_coef = objective.loss_kl(it.kl.coef());
            let update = Update { model: &it.session.model, objective, learner, temperature, kl_coef, lr };
            let done = match &mut it.critic {
                Some(critic) => {
                    let policy = learns.then_some((&update, &mut it.optimizer));
                    critic.update(policy, update.model, &part, learner).map(|(own, critic)| (own, Some(critic)))
                }
                None => update.step(&mut it.optimizer, &part).map(|own| (Some(own), None)),
            };
            let (own, of_critic) = done.map_err(|error| it.keep(named(error, trajectories), trajectories))?;
            let skipped = own.as_ref().and_then(|stats| stats.skipped.as_ref());
            let skipped = skipped.or(of_critic.as_ref().and_then(|stats| stats.skipped.as_ref()));
            report::skipped(reporter, it.state.step + 1, skipped, trajectories);
            let stepped = own.as_ref().is_some_and(|stats| stats.stepped);
            if stepped {
                parts.updated(&part, &update)?;
                it.average()?;
            }
            let critic_stepped = of_critic.as_ref().is_some_and(|stats| stats.stepped);
            it.state.optimizer_step += u64::from(stepped || critic_stepped);
            updates.extend(own);
            critic_updates.extend(of_critic);
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
    Ok(Learnt { learned, lesson, scores, credit, updates, critic_updates, kl })
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
    let estimate = |rows: &[StepRow]| {
        let mut found = match how.advantages {
            Some(given) => given_advantages(rows, learned, given)?,
            None => it.advantages(how.objective, rows, taught)?,
        };
        if let Some(given) = how.returns {
            (found.returns, found.targets) = given_returns(rows, learned, given)?;
        }
        Ok(found)
    };
    let credit = Credit::assign(steps, ways, estimate, taught)?;
    it.returns = returns;
    Ok(credit)
}

/// What is given for a step.
enum Numbers<'a> {
    /// One number for all of its tokens.
    All(f64),
    Tokens(&'a [f64]),
}

/// What is given for the step of `row`; `None` for a trajectory that nothing is given for. A step that was written for the
/// script has what is given for the step it was written for.
fn given_for<'a>(row: &StepRow, learned: &Learned<'_>, given: &'a [Given], what: &str) -> Result<Option<Numbers<'a>>> {
    let trajectory = row.trajectory as usize;
    let wrong = |why: String| Err(Error::new(Kind::Usage, why).in_step(row.trajectory, row.step));
    let steps = match given.get(trajectory) {
        None => return Ok(None),
        Some(Given::All(number)) => return Ok(Some(Numbers::All(*number))),
        Some(Given::Steps(steps)) => steps,
    };
    match steps.get(learned.acted(trajectory, row.step as usize)) {
        Some(GivenStep::All(number)) => Ok(Some(Numbers::All(*number))),
        Some(GivenStep::Tokens(tokens)) if tokens.len() == row.mask.len() => Ok(Some(Numbers::Tokens(tokens))),
        Some(GivenStep::Tokens(tokens)) => {
            wrong(format!("{} {what} for {} sampled tokens", tokens.len(), row.mask.len()))
        }
        None => wrong(format!("there are {what} for {} steps only", steps.len())),
    }
}

fn counts(row: &StepRow) -> bool {
    row.status.is_none_or(|status| !status.is_failure())
}

/// Brings given advantages to the tokens of steps.
fn given_advantages(rows: &[StepRow], learned: &Learned<'_>, given: &[Given]) -> Result<Advantages> {
    let mut found = Advantages::none(rows);
    for (place, row) in rows.iter().enumerate() {
        let own = match given_for(row, learned, given, "advantages")? {
            None => continue,
            Some(Numbers::All(advantage)) => vec![advantage; row.mask.len()],
            Some(Numbers::Tokens(tokens)) => tokens.to_vec(),
        };
        found.counted[place] = counts(row);
        if found.counted[place] {
            found.advantages[place] = own;
        }
    }
    found.share(rows);
    Ok(found)
}

/// Brings given returns to the tokens of steps, and says where the critic is asked: at each token, or at the first one of a
/// step that one number is given for.
#[allow(clippy::type_complexity)] // two columns of the rows
fn given_returns(rows: &[StepRow], learned: &Learned<'_>, given: &[Given]) -> Result<(Vec<Vec<f64>>, Vec<Vec<bool>>)> {
    let mut found = Advantages::none(rows);
    for (place, row) in rows.iter().enumerate() {
        let own = given_for(row, learned, given, "returns")?.filter(|_| counts(row));
        found.counted[place] = own.is_some();
        match own {
            None => {}
            Some(Numbers::Tokens(tokens)) => {
                found.returns[place] = tokens.to_vec();
                found.targets[place].clone_from(&row.mask);
            }
            Some(Numbers::All(number)) => {
                if let Some(first) = row.mask.iter().position(|sampled| *sampled) {
                    found.returns[place][first] = number;
                    found.targets[place][first] = true;
                }
            }
        }
    }
    found.share(rows);
    Ok((found.returns, found.targets))
}
