//! The critic of a run: loaded, trained, saved.

use std::path::Path;

use tch::Tensor;

use super::privileged::{self, Prefixes};
use super::tensors::read_optimizer;
use super::update::{SharedTrunk, Update, UpdateStats};
use super::value::{self, CriticStats, target_count, update_critic};
use crate::adamw::{self, AdamW};
use crate::config::{Learner, PolicySettings};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load::load_model;
use crate::mdp::Trajectory;
use crate::model::{Critic, Model, UnwrittenFile};
use crate::rl::pack::{MicroBatch, Row};
use crate::store::trainer_state;
use crate::text::Tokenizer;
use crate::train::shards::Shards;

/// The critic's folder within a checkpoint's `trainer_state`, and its optimiser's state in that
/// folder.
const DIR: &str = "critic";
const OPTIMIZER: &str = "optimizer";

/// A critic and its optimiser.
pub(crate) struct TrainedCritic {
    critic: Critic,
    /// The optimiser of head and trunk, or of a head alone.
    optimizer: AdamW,
}

impl TrainedCritic {
    /// A new critic started from the model that `base` names, or from the checkpoint that the run
    /// resumes from.
    pub(crate) fn open(
        policy: &Model,
        learner: &Learner,
        checkpoint: Option<&Path>,
        base: &PolicySettings,
        shards: &Shards,
        fetching: Fetching<'_>,
    ) -> Result<Self> {
        let saved = checkpoint.map(|checkpoint| trainer_state(checkpoint).join(DIR));
        if let Some(dir) = saved.as_ref().filter(|dir| !dir.is_dir()) {
            return Err(Error::new(Kind::Store, "the checkpoint has no critic: the run was trained without one")
                .at_path(dir)
                .hint("resume with the algorithm of the run, or start a new run with policy.model=RUN"));
        }
        let mut trunk = if learner.critic.shared {
            None
        } else {
            Some(match &saved {
                Some(dir) => Model::load(dir, policy.device(), policy.kind())?,
                None => load_model(base, fetching)?.0,
            })
        };
        if let Some(trunk) = &mut trunk {
            trunk.set_checkpointing(learner.gradient_checkpointing);
        }
        let mut critic = Critic::new(policy, trunk)?;
        if let Some(dir) = &saved {
            critic.load_head(dir)?;
        }
        let weights = adamw::AdamWOptions { weight_decay: learner.weight_decay, ..adamw::AdamWOptions::default() };
        let mut optimizer = AdamW::new(critic.parameters(), weights)?;
        shards.divide(&mut optimizer, policy.config.num_hidden_layers)?;
        if let Some(dir) = &saved {
            optimizer.load_state(read_optimizer(dir, OPTIMIZER)?)?;
        }
        Ok(Self { critic, optimizer })
    }

    /// Sets the values of `rows` under the current weights. Returns the value of the next
    /// observation of each truncated trajectory, and the text that only the critic reads.
    ///
    /// # Errors
    /// `Kind::Data` if the text for the critic is missing or too long.
    pub(crate) fn values(
        &self,
        policy: &Model,
        rows: &mut [Row],
        trajectories: &[Trajectory],
        tokenizer: &Tokenizer,
        (learner, shards): (&Learner, &Shards),
    ) -> Result<(Vec<Option<f64>>, Prefixes)> {
        let prefixes = privileged::prefixes(&learner.critic, trajectories, tokenizer)?;
        let at_once = learner.tokens_at_once();
        let next = value::values(&self.critic, policy, rows, trajectories, &prefixes, (at_once, shards))?;
        Ok((next, prefixes))
    }

    /// One optimiser step of the critic and, unless it is warming up, one of the policy.
    pub(crate) fn update(
        &mut self,
        policy: Option<(&Update<'_>, &mut AdamW)>,
        model: &Model,
        data: (&[Row], &Prefixes),
        (learner, shards): (&Learner, &Shards),
    ) -> Result<(Option<UpdateStats>, CriticStats)> {
        let (settings, (rows, _)) = (&learner.critic, data);
        let Some((update, optimizer)) = policy else {
            let of_critic = update_critic(&self.critic, model, &mut self.optimizer, data, (learner, shards))?;
            return Ok((None, of_critic));
        };
        let count = target_count(rows);
        if self.critic.trunk().is_some() || count == 0 {
            let of_critic = update_critic(&self.critic, model, &mut self.optimizer, data, (learner, shards))?;
            return Ok((Some(update.step(optimizer, rows)?), of_critic));
        }
        // One forward and backward pass for both losses; the head has its own learning rate.
        let value_loss = |hidden: &Tensor, batch: &MicroBatch| {
            let values = self.critic.values(hidden, &batch.predict)?;
            let (loss, clipped) = value::share(&values, batch, rows, count, settings)?;
            Ok((loss.f_mul_scalar(settings.weight)?, [loss.f_detach()?, clipped]))
        };
        self.optimizer.zero_grad();
        let shared = SharedTrunk { loss: &value_loss, head: &mut self.optimizer };
        let policy_stats = update.step_shared(optimizer, rows, Some(shared))?;
        let [loss, clipped] = policy_stats.critic;
        let mut stats = CriticStats { loss, clip_frac: clipped / count.max(1) as f64, ..CriticStats::default() };
        if policy_stats.stepped {
            stats.grad_norm = shards.step(&mut self.optimizer, settings.lr, learner.max_grad_norm)?;
            stats.stepped = true;
        }
        Ok((Some(policy_stats), stats))
    }

    /// The files of the critic for the folder `trainer_state` of a checkpoint.
    pub(crate) fn unwritten(&self) -> Result<Vec<UnwrittenFile>> {
        let files = self.critic.unwritten()?.into_iter();
        Ok(files.map(|file| file.labelled("the critic's weight").within(DIR)).collect())
    }

    /// The state of its optimiser, or the part of this process.
    pub(crate) fn optimizer_file(&self, shards: &Shards) -> Result<UnwrittenFile> {
        Ok(shards.state(OPTIMIZER, "the critic's weight", &self.optimizer)?.within(DIR))
    }
}
