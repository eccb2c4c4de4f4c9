//! The stages of an update, from trajectories to new weights: rows with log-probabilities and
//! values ([`TrainingData`]), and, with their advantages, optimiser steps of the policy and of the
//! critic ([`update_weights`]). `r1 run` and the loops of programs (`r1.training`) use both.

use super::advantages::{AdvantageBatch, AdvantageConfig, AdvantageSource, with_trajectory_ids};
use super::custom_estimator::ScriptEstimator;
use super::generated::{Trainable, with_generated_steps};
use super::metrics;
use super::mini_batches::MiniBatches;
use super::objective::Objective;
use super::report;
use super::setup::Training;
use super::steps::Steps;
use super::update::{Update, UpdateStats};
use super::update_batch::{self, SamplerMismatch, UpdateBatch};
use super::value::CriticStats;
use crate::config::Learner;
use crate::error::{Error, Kind, Result};
use crate::mdp::Trajectory;
use crate::rl::advantages::Need;
use crate::script::services::training::GivenAdvantages;
use crate::telemetry::{Metrics, Reporter};
use crate::text::Renderer;

/// The settings of an update.
#[derive(Clone, Copy)]
pub(super) struct UpdateSettings<'a> {
    pub(super) learner: &'a Learner,
    pub(super) objective: &'a Objective,
    pub(super) lr: f64,
    /// For each trajectory the advantages of each step's tokens, instead of those of the estimator.
    pub(super) advantages: Option<&'a [GivenAdvantages]>,
    /// For each trajectory the returns that the critic learns to predict.
    pub(super) returns: Option<&'a [GivenAdvantages]>,
    /// Whether the policy is updated; otherwise only the critic is.
    pub(super) policy: bool,
}

impl<'a> UpdateSettings<'a> {
    /// The settings of the recipe.
    pub(super) fn new(learner: &'a Learner, objective: &'a Objective, lr: f64) -> Self {
        Self { learner, objective, lr, advantages: None, returns: None, policy: true }
    }
}

/// The parts of a step's trajectories that estimator and loss read.
pub(super) struct TrainingData<'a> {
    pub(super) trainable: Trainable<'a>,
    pub(super) batch: UpdateBatch,
    pub(super) mismatch: SamplerMismatch,
    /// For each trajectory, whether it is a greedy baseline, which is not trained on.
    is_baseline: Vec<bool>,
    /// For each truncated trajectory, the critic's value of the next observation.
    next_values: Vec<Option<f64>>,
}

impl<'a> TrainingData<'a> {
    /// Merges the steps of `trajectories` into rows (on exact prefixes) and computes their
    /// log-probabilities and the critic's values, under the weights before the update.
    pub(super) fn compute(
        training: &Training,
        trajectories: &'a [Trajectory],
        is_baseline: impl Fn(usize) -> bool,
        settings: UpdateSettings<'_>,
    ) -> Result<Self> {
        let UpdateSettings { learner, objective, .. } = settings;
        let trainable = with_generated_steps(trajectories);
        let all = trainable.trajectories();
        let mut rows = update_batch::training_rows(learner, all, &is_baseline)?;
        let mismatch = update_batch::compute_logprobs(&mut rows, training, learner, objective)?;
        let (mut next_values, mut batch) = (Vec::new(), UpdateBatch::default());
        if let Some(critic) = &training.critic {
            let tokenizer = training.session.renderer.tokenizer();
            let computed = critic.values(&training.session.model, &mut rows, all, tokenizer, learner)?;
            (next_values, batch.prefixes) = (computed.next, computed.prefixes);
        }
        batch.rows = rows;
        if objective.custom.is_some() {
            batch.read_by_custom_loss(objective, all);
        }
        let is_baseline = (0..trajectories.len()).map(is_baseline).collect();
        Ok(Self { trainable, batch, mismatch, is_baseline, next_values })
    }

    /// The trajectories with the steps of generated text that is trained on.
    pub(super) fn trajectories(&self) -> &[Trajectory] {
        self.trainable.trajectories()
    }

    /// The steps in the form that estimators read.
    pub(super) fn steps(&self, objective: &Objective, renderer: &Renderer) -> Steps {
        let trajectories = self.trajectories();
        let mut steps = Steps::of(trajectories, |index| self.is_baseline[index]);
        if objective.needs(Need::Anchors) {
            steps.set_anchors(trajectories, renderer);
        }
        if objective.needs(Need::Parts) {
            steps.set_reward_parts(trajectories);
        }
        steps.read_columns(&self.batch.rows);
        steps.set_next_values(&self.next_values);
        steps
    }
}

/// The configuration that turns the rewards of `trainable` into advantages.
pub(super) fn advantage_config<'a>(
    training: &'a mut Training,
    settings: UpdateSettings<'a>,
    trainable: &'a Trainable<'a>,
) -> Result<AdvantageConfig<'a>> {
    let shaping = training.shaping(settings.objective);
    let source = match (settings.advantages, &settings.objective.estimator) {
        (Some(given), _) => AdvantageSource::Given(given, trainable),
        (None, Some(estimator)) => AdvantageSource::Estimator(estimator),
        (None, None) => {
            let own = match training.custom_estimator.take().filter(|own| !own.needs_replacement()) {
                Some(own) => own,
                None => ScriptEstimator::new(&training.script, training.critic.is_some())?,
            };
            AdvantageSource::Script(training.custom_estimator.insert(own))
        }
    };
    Ok(AdvantageConfig {
        source,
        shaping,
        returns: &mut training.returns,
        given_returns: settings.returns.map(|given| (given, trainable)),
        on_nan: settings.learner.on_nan,
    })
}

/// The result of an update.
pub(super) struct UpdateOutcome {
    pub(super) updates: Vec<UpdateStats>,
    pub(super) critic_updates: Vec<CriticStats>,
    /// KL to the reference policy, if it was measured.
    pub(super) kl: Option<f64>,
}

impl UpdateOutcome {
    /// Sets the metrics of the update; `policy_version` counts the updates of the run.
    pub(super) fn log(
        &self,
        metrics: &mut Metrics,
        training: &Training,
        data: &TrainingData<'_>,
        advantages: &AdvantageBatch,
        settings: UpdateSettings<'_>,
        policy_version: u64,
    ) {
        let UpdateSettings { learner, objective, lr, .. } = settings;
        metrics::advantages(metrics, advantages);
        metrics::update(metrics, &self.updates, lr, policy_version);
        metrics::packing(metrics, data.trajectories(), &data.batch.rows);
        if advantages.skipped.is_some() {
            metrics.set("policy/skipped", (learner.epochs * learner.mini_batches) as f64);
        }
        metrics::kl_penalty(metrics, &training.kl, self.kl, objective.kl_coef.coef() > 0.0);
        if training.critic.is_some() {
            metrics::critic(metrics, &self.critic_updates, &data.batch);
        }
        data.mismatch.log(metrics, &data.batch.rows, &self.updates);
    }
}

/// `epochs` passes over the data in `mini_batches` optimiser steps each. A mini-batch holds whole
/// trajectories.
///
/// # Errors
/// `Kind::Interrupted` if the user stops the run at once; nothing was changed then.
pub(super) fn update_weights(
    training: &mut Training,
    data: &mut TrainingData<'_>,
    advantages: &AdvantageBatch,
    settings: UpdateSettings<'_>,
    reporter: &Reporter,
) -> Result<UpdateOutcome> {
    let UpdateSettings { learner, objective, lr, .. } = settings;
    let step = training.state.step + 1;
    let temperature = training.session.settings.sampling.temperature;
    report::skipped(reporter, step, advantages.skipped.as_ref());
    let epochs = if advantages.skipped.is_none() { learner.epochs } else { 0 };
    advantages.write_into(&mut data.batch.rows);
    if !training.standing.update_begins() {
        return Err(Error::new(Kind::Interrupted, "stopped before the update"));
    }
    let trajectories = data.trainable.trajectories();
    let bar = reporter.bar("training", (epochs * learner.mini_batches) as u64, "updates");
    let critic_alone = training.critic.is_some() && training.state.step < learner.critic.warmup as u64;
    let policy_learns = settings.policy && !critic_alone;
    let mut updates: Vec<UpdateStats> = Vec::new();
    let mut critic_updates: Vec<CriticStats> = Vec::new();
    for _ in 0..epochs {
        let mut parts = MiniBatches::of(&data.batch, learner, objective.together());
        while let Some(part) = parts.take() {
            let kl_coef = objective.loss_kl(training.kl.coef());
            let update = Update { model: &training.session.model, objective, learner, temperature, kl_coef, lr };
            let done = match &mut training.critic {
                Some(critic) => {
                    let policy = policy_learns.then_some((&update, &mut training.optimizer));
                    critic.update(policy, update.model, &part, learner).map(|(own, critic)| (own, Some(critic)))
                }
                None => update.step(&mut training.optimizer, &part).map(|own| (Some(own), None)),
            };
            let (own, of_critic) = done.map_err(|error| with_trajectory_ids(error, trajectories))?;
            let skipped = own.as_ref().and_then(|stats| stats.skipped.as_ref());
            let skipped = skipped.or(of_critic.as_ref().and_then(|stats| stats.skipped.as_ref()));
            let skipped = skipped.map(|error| with_trajectory_ids(error.clone(), trajectories));
            report::skipped(reporter, step, skipped.as_ref());
            let stepped = own.as_ref().is_some_and(|stats| stats.stepped);
            if stepped {
                parts.updated(&part, &update)?;
                training.average()?;
            }
            let critic_stepped = of_critic.as_ref().is_some_and(|stats| stats.stepped);
            training.state.optimizer_step += u64::from(stepped || critic_stepped);
            updates.extend(own);
            critic_updates.extend(of_critic);
            bar.inc(1);
        }
    }
    bar.finish();
    report::refuse_mismatch(data.mismatch.largest(&updates).unwrap_or(0.0), learner.max_mismatch)?;
    // A penalty in the reward is measured before the update, a term of the loss in the updates.
    let kl = match &objective.shaping.kl {
        Some(penalty) => advantages.kl(penalty.kind),
        None => metrics::mean_kl(&updates),
    };
    if let Some(kl) = kl {
        training.kl.update(kl, trajectories.len());
    }
    Ok(UpdateOutcome { updates, critic_updates, kl })
}
