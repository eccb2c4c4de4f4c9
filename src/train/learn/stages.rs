//! The stages of an update, from trajectories to new weights: rows with log-probabilities and
//! values ([`TrainingData`]), their advantages (`compute_advantages`), and optimiser steps of the
//! policy and of the critic ([`update_weights`]). `r1 run` and the loops of programs
//! (`r1.training`) use all three.

use std::borrow::Cow;

use super::advantages::{AdvantageConfig, AdvantageSource, mean_kl as kl_before, with_trajectory_ids};
use super::custom_estimator::ScriptEstimator;
use super::generated::with_generated_steps;
use super::logprobs::{SamplerMismatch, compute_logprobs, refuse_mismatch};
use super::mini_batches::{StepRatios, mini_batches_of};
use super::policy::TrainedPolicy;
use super::privileged::Prefixes;
use super::steps::{read_columns, set_anchors, set_next_values, set_reward_parts, training_steps};
use super::token_records::UpdateRecords;
use super::training_rows::{set_loss_inputs, training_rows};
use super::update::{Update, UpdateSettings, UpdateStats, mean_kl, report_skipped};
use super::value::CriticStats;
use crate::error::Result;
use crate::mdp::{StepRow, Trajectory};
use crate::rl::advantages::{Advantages, AlgorithmNeed};
use crate::rl::pack::{Row, put_advantages};
use crate::script::Script;
use crate::store::RunProgress;
use crate::telemetry::Reporter;
use crate::text::Renderer;
use crate::timeline;
use crate::train::rules::objective::Objective;

/// The trajectories of an update in the forms that its stages and its metrics read.
pub(crate) struct TrainingData<'a> {
    /// With the steps of generated text that is trained on.
    pub(crate) trajectories: Cow<'a, [Trajectory]>,
    /// For reward shaping and the estimator.
    pub(crate) steps: Vec<StepRow>,
    /// For the forward pass and the loss.
    pub(crate) rows: Vec<Row>,
    /// Text for the critic before its rows.
    pub(crate) prefixes: Prefixes,
    pub(crate) mismatch: SamplerMismatch,
}

impl<'a> TrainingData<'a> {
    /// Merges the steps of `trajectories` into rows (on exact prefixes) and computes their
    /// log-probabilities and the critic's values, under the weights before the update. Trajectories
    /// from index `baselines_from` on are greedy baselines, which are not trained on.
    pub(crate) fn compute(
        policy: &TrainedPolicy,
        trajectories: &'a [Trajectory],
        baselines_from: usize,
        settings: UpdateSettings<'_>,
    ) -> Result<Self> {
        let UpdateSettings { learner, objective, .. } = settings;
        let trajectories = with_generated_steps(trajectories);
        let mut rows = training_rows(learner, &trajectories, |index| index >= baselines_from)?;
        let mismatch = compute_logprobs(&mut rows, &policy.model, policy.reference.as_ref(), settings, &policy.shards)?;
        let (next_values, prefixes) = match &policy.critic {
            Some(critic) => {
                let tokenizer = policy.renderer.tokenizer();
                critic.values(&policy.model, &mut rows, &trajectories, tokenizer, (learner, &policy.shards))?
            }
            None => (Vec::new(), Prefixes::default()),
        };
        if objective.graph().is_some() {
            set_loss_inputs(&mut rows, objective, &trajectories);
        }
        let (rows_and_values, renderer) = ((&rows[..], &next_values[..]), &policy.renderer);
        let steps = estimator_steps(&trajectories, baselines_from, rows_and_values, objective, renderer);
        Ok(Self { trajectories, steps, rows, prefixes, mismatch })
    }
}

/// The steps of `trajectories` with the columns that the estimator reads, and the critic's value of
/// the next observation of each truncated trajectory.
pub(crate) fn estimator_steps(
    trajectories: &[Trajectory],
    baselines_from: usize,
    (rows, next_values): (&[Row], &[Option<f64>]),
    objective: &Objective,
    renderer: &Renderer,
) -> Vec<StepRow> {
    let mut steps = training_steps(trajectories, |index| index >= baselines_from);
    if objective.needs(AlgorithmNeed::Anchors) {
        set_anchors(&mut steps, trajectories, renderer);
    }
    if objective.needs(AlgorithmNeed::Parts) {
        set_reward_parts(&mut steps, trajectories);
    }
    read_columns(&mut steps, rows);
    set_next_values(&mut steps, next_values);
    steps
}

/// The configuration that turns rewards into advantages.
pub(crate) fn advantage_config<'a>(
    policy: &'a mut TrainedPolicy,
    script: &Script,
    settings: UpdateSettings<'a>,
) -> Result<AdvantageConfig<'a>> {
    let shaping = policy.shaping(settings.objective);
    let source = match (settings.advantages, &settings.objective.estimator) {
        (Some(advantages), _) => AdvantageSource::Given(advantages),
        (None, Some(estimator)) => AdvantageSource::Estimator(estimator),
        (None, None) => {
            let worker = match policy.custom_estimator.take().filter(|worker| !worker.needs_replacement()) {
                Some(worker) => worker,
                None => ScriptEstimator::new(script, settings.objective.function.clone(), policy.critic.is_some())?,
            };
            AdvantageSource::Script(policy.custom_estimator.insert(worker))
        }
    };
    Ok(AdvantageConfig {
        source,
        shaping,
        returns: &mut policy.returns,
        given_returns: settings.returns,
        on_nan: settings.learner.on_nan,
    })
}

pub(crate) struct UpdateOutcome {
    pub(crate) updates: Vec<UpdateStats>,
    /// The numbers of the tokens in these updates.
    pub(crate) records: UpdateRecords,
    pub(crate) critic_updates: Vec<CriticStats>,
    /// KL to the reference policy, if it was measured.
    pub(crate) kl: Option<f64>,
}

/// `epochs` passes over the data in `mini_batches` optimiser steps each, which `state` counts. A
/// mini-batch holds whole trajectories.
pub(crate) fn update_weights(
    policy: &mut TrainedPolicy,
    state: &mut RunProgress,
    data: &mut TrainingData<'_>,
    advantages: &Advantages,
    settings: UpdateSettings<'_>,
    reporter: &Reporter,
) -> Result<UpdateOutcome> {
    let UpdateSettings { learner, objective, lr, temperature, .. } = settings;
    let step = state.step + 1;
    let epochs = if advantages.skipped.is_none() { learner.epochs } else { 0 };
    put_advantages(&mut data.rows, &data.steps, advantages);
    let trajectories = &data.trajectories;
    let bar = reporter.bar("training", (epochs * learner.mini_batches) as u64, "updates");
    let critic_alone = policy.critic.is_some() && state.step < learner.critic.warmup as u64;
    let policy_learns = settings.policy && !critic_alone;
    let mut updates: Vec<UpdateStats> = Vec::new();
    let mut critic_updates: Vec<CriticStats> = Vec::new();
    let mut records = UpdateRecords::new(&data.rows);
    for _ in 0..epochs {
        let mut ratios = StepRatios::new(learner);
        let mut parts = mini_batches_of(&data.rows, learner, objective.together());
        while let Some(mut part) = parts.next() {
            if let Some(ratios) = &ratios {
                ratios.scale(&mut part);
            }
            let kl_coef = objective.loss_kl(policy.kl.coef());
            let _span = timeline::span("optimiser step", || "training".to_owned());
            let (model, shards) = (&policy.model, &policy.shards);
            let update = Update { model, objective, learner, temperature, kl_coef, lr, shards };
            let done = match &mut policy.critic {
                Some(critic) => {
                    let policy = policy_learns.then_some((&update, &mut policy.optimizer));
                    critic
                        .update(policy, update.model, (&part, &data.prefixes), (learner, shards))
                        .map(|(update_stats, critic)| (update_stats, Some(critic)))
                }
                None => update.step(&mut policy.optimizer, &part).map(|update_stats| (Some(update_stats), None)),
            };
            let (mut policy_stats, critic_stats) = done.map_err(|error| with_trajectory_ids(error, trajectories))?;
            if let Some(stats) = &mut policy_stats {
                records.reports_clip |= stats.reports_clip;
                records.add(&part, std::mem::take(&mut stats.records));
            }
            let skipped = policy_stats.as_ref().and_then(|stats| stats.skipped.as_ref());
            let skipped = skipped.or(critic_stats.as_ref().and_then(|stats| stats.skipped.as_ref()));
            let skipped = skipped.map(|error| with_trajectory_ids(error.clone(), trajectories));
            report_skipped(reporter, step, skipped.as_ref());
            let stepped = policy_stats.as_ref().is_some_and(|stats| stats.stepped);
            if stepped {
                if let Some(ratios) = ratios.as_mut().filter(|_| parts.len() > 0) {
                    ratios.measure(&part, &update)?;
                }
                policy.average()?;
            }
            let critic_stepped = critic_stats.as_ref().is_some_and(|stats| stats.stepped);
            state.optimizer_step += u64::from(stepped || critic_stepped);
            updates.extend(policy_stats);
            critic_updates.extend(critic_stats);
            bar.inc(1);
        }
    }
    bar.finish();
    refuse_mismatch(data.mismatch.largest(&updates).unwrap_or(0.0), learner.max_mismatch)?;
    // A penalty in the reward is measured before the update, a term of the loss in the updates.
    let kl = match &objective.shaping.kl {
        Some(penalty) => kl_before(advantages, &data.steps, penalty.kind),
        None => mean_kl(&updates),
    };
    if let Some(kl) = kl {
        policy.kl.update(kl, trajectories.len());
    }
    Ok(UpdateOutcome { updates, records, critic_updates, kl })
}
