//! The stages of an update, from trajectories to new weights: rows with log-probabilities and
//! values ([`TrainingData`]), their advantages ([`compute_advantages`]), and optimiser steps of the
//! policy and of the critic ([`update_weights`]). `r1 run` and the loops of programs
//! (`r1.training`) use all three.

use super::advantages::{AdvantageBatch, AdvantageConfig, AdvantageSource, with_trajectory_ids};
use super::custom_estimator::ScriptEstimator;
use super::generated::{Trainable, with_generated_steps};
use super::given_advantages;
use super::logprobs::{SamplerMismatch, compute_logprobs, refuse_mismatch};
use super::mini_batches::MiniBatches;
use super::policy::TrainedPolicy;
use super::steps::Steps;
use super::update::{Update, UpdateSettings, UpdateStats, mean_kl, report_skipped};
use super::update_batch::{UpdateBatch, training_rows};
use super::value::CriticStats;
use crate::error::Result;
use crate::mdp::Trajectory;
use crate::rl::advantages::AlgorithmNeed;
use crate::script::Script;
use crate::store::RunProgress;
use crate::telemetry::Reporter;
use crate::text::Renderer;
use crate::train::rules::objective::Objective;

/// The parts of a step's trajectories that estimator and loss read.
pub(crate) struct TrainingData<'a> {
    pub(crate) trainable: Trainable<'a>,
    pub(crate) batch: UpdateBatch,
    pub(crate) mismatch: SamplerMismatch,
    /// Trajectories from this index on are greedy baselines, which are not trained on.
    pub(crate) baselines_from: usize,
    /// For each truncated trajectory, the critic's value of the next observation.
    pub(crate) next_values: Vec<Option<f64>>,
}

impl<'a> TrainingData<'a> {
    /// Merges the steps of `trajectories` into rows (on exact prefixes) and computes their
    /// log-probabilities and the critic's values, under the weights before the update.
    pub(crate) fn compute(
        policy: &TrainedPolicy,
        trajectories: &'a [Trajectory],
        baselines_from: usize,
        settings: UpdateSettings<'_>,
    ) -> Result<Self> {
        let UpdateSettings { learner, objective, .. } = settings;
        let trainable = with_generated_steps(trajectories);
        let all = trainable.trajectories();
        let mut rows = training_rows(learner, all, |index| index >= baselines_from)?;
        let mismatch = compute_logprobs(&mut rows, &policy.model, policy.reference.as_ref(), settings)?;
        let (mut next_values, mut batch) = (Vec::new(), UpdateBatch::default());
        if let Some(critic) = &policy.critic {
            let tokenizer = policy.renderer.tokenizer();
            let computed = critic.values(&policy.model, &mut rows, all, tokenizer, learner)?;
            (next_values, batch.prefixes) = (computed.next, computed.prefixes);
        }
        batch.rows = rows;
        if objective.graph().is_some() {
            batch.read_by_custom_loss(objective, all);
        }
        Ok(Self { trainable, batch, mismatch, baselines_from, next_values })
    }

    /// The trajectories with the steps of generated text that is trained on.
    pub(crate) fn trajectories(&self) -> &[Trajectory] {
        self.trainable.trajectories()
    }

    /// The steps in the form that estimators read.
    pub(crate) fn steps(&self, objective: &Objective, renderer: &Renderer) -> Steps {
        let trajectories = self.trajectories();
        let mut steps = Steps::of(trajectories, |index| index >= self.baselines_from);
        if objective.needs(AlgorithmNeed::Anchors) {
            steps.set_anchors(trajectories, renderer);
        }
        if objective.needs(AlgorithmNeed::Parts) {
            steps.set_reward_parts(trajectories);
        }
        steps.read_columns(&self.batch.rows);
        steps.set_next_values(&self.next_values);
        steps
    }
}

/// The configuration that turns the rewards of `trainable` into advantages.
pub(crate) fn advantage_config<'a>(
    policy: &'a mut TrainedPolicy,
    script: &Script,
    settings: UpdateSettings<'a>,
    trainable: &'a Trainable<'a>,
) -> Result<AdvantageConfig<'a>> {
    let shaping = policy.shaping(settings.objective);
    let source = match (settings.advantages, &settings.objective.estimator) {
        (Some(advantages), _) => AdvantageSource::Given(advantages, trainable),
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
        given_returns: settings.returns.map(|advantages| (advantages, trainable)),
        on_nan: settings.learner.on_nan,
    })
}

pub(crate) struct UpdateOutcome {
    pub(crate) updates: Vec<UpdateStats>,
    pub(crate) critic_updates: Vec<CriticStats>,
    /// KL to the reference policy, if it was measured.
    pub(crate) kl: Option<f64>,
}

/// Shapes the rewards of a step's trajectories and computes the advantages of their tokens. Failed
/// trajectories have none.
///
/// # Errors
/// `Kind::Numeric` names the trajectory whose rewards, values or advantages are NaN or infinite;
/// with `on_nan = "skip"` no trajectory has an advantage instead.
pub fn compute_advantages(
    mut steps: Steps,
    config: AdvantageConfig<'_>,
    trajectories: &[Trajectory],
) -> Result<AdvantageBatch> {
    let AdvantageConfig { source, shaping, returns, given_returns, on_nan } = config;
    let returns_before = *returns;
    let result = steps.shape_rewards(&shaping, returns, trajectories).and_then(|()| {
        let mut result = match source {
            AdvantageSource::Estimator(estimator) => estimator.estimate(&steps.rows, false)?,
            AdvantageSource::Script(function) => function.estimate(&steps.rows, trajectories)?,
            AdvantageSource::Given(advantages, trainable) => {
                given_advantages::advantages(&steps.rows, trainable, advantages)?
            }
        };
        if let Some((advantages, trainable)) = given_returns {
            given_advantages::put_returns(&mut result, &steps.rows, trainable, advantages)?;
        }
        Ok(result)
    });
    let batch = AdvantageBatch::new(steps, result, on_nan, trajectories);
    if batch.is_err() {
        *returns = returns_before;
    }
    batch
}

/// `epochs` passes over the data in `mini_batches` optimiser steps each, which `state` counts. A
/// mini-batch holds whole trajectories.
pub(crate) fn update_weights(
    policy: &mut TrainedPolicy,
    state: &mut RunProgress,
    data: &mut TrainingData<'_>,
    advantages: &AdvantageBatch,
    settings: UpdateSettings<'_>,
    reporter: &Reporter,
) -> Result<UpdateOutcome> {
    let UpdateSettings { learner, objective, lr, temperature, .. } = settings;
    let step = state.step + 1;
    let epochs = if advantages.skipped.is_none() { learner.epochs } else { 0 };
    advantages.write_into(&mut data.batch.rows);
    let trajectories = data.trainable.trajectories();
    let bar = reporter.bar("training", (epochs * learner.mini_batches) as u64, "updates");
    let critic_alone = policy.critic.is_some() && state.step < learner.critic.warmup as u64;
    let policy_learns = settings.policy && !critic_alone;
    let mut updates: Vec<UpdateStats> = Vec::new();
    let mut critic_updates: Vec<CriticStats> = Vec::new();
    for _ in 0..epochs {
        let mut parts = MiniBatches::of(&data.batch, learner, objective.together());
        while let Some(part) = parts.take() {
            let kl_coef = objective.loss_kl(policy.kl.coef());
            let update = Update { model: &policy.model, objective, learner, temperature, kl_coef, lr };
            let done = match &mut policy.critic {
                Some(critic) => {
                    let policy = policy_learns.then_some((&update, &mut policy.optimizer));
                    critic
                        .update(policy, update.model, &part, learner)
                        .map(|(update_stats, critic)| (update_stats, Some(critic)))
                }
                None => update.step(&mut policy.optimizer, &part).map(|update_stats| (Some(update_stats), None)),
            };
            let (policy_stats, critic_stats) = done.map_err(|error| with_trajectory_ids(error, trajectories))?;
            let skipped = policy_stats.as_ref().and_then(|stats| stats.skipped.as_ref());
            let skipped = skipped.or(critic_stats.as_ref().and_then(|stats| stats.skipped.as_ref()));
            let skipped = skipped.map(|error| with_trajectory_ids(error.clone(), trajectories));
            report_skipped(reporter, step, skipped.as_ref());
            let stepped = policy_stats.as_ref().is_some_and(|stats| stats.stepped);
            if stepped {
                parts.updated(&part, &update)?;
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
        Some(penalty) => advantages.kl(penalty.kind),
        None => mean_kl(&updates),
    };
    if let Some(kl) = kl {
        policy.kl.update(kl, trajectories.len());
    }
    Ok(UpdateOutcome { updates, critic_updates, kl })
}
