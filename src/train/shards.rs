//! The shards of an optimiser step: which process computes which micro-batches, and the sum of
//! their gradients (docs/lab/decisions/0032).

use std::rc::Rc;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::parameter_shards::owner_of_layer;
use super::ranks::Ranks;
use crate::adamw::AdamW;
use crate::config::{Learner, Sft};
use crate::error::{Error, Kind, Result};
use crate::model::{UnwrittenFile, layer_of};
use crate::process_group::ProcessGroup;
use crate::telemetry::counted;

/// The parts into which the micro-batches of an optimiser step are divided. A rank computes one or
/// more whole shards. The gradients of the shards are added in the order of a binary tree, so that
/// the bits of the sum depend on the number of shards, and not on the number of ranks.
#[derive(Clone)]
pub struct Shards {
    ranks: Ranks,
    count: usize,
    writes_parts: bool,
    beside: Option<Rc<dyn Interleaved>>,
    /// What the processes divide among them: `trainer.zero_stage`.
    zero_stage: usize,
    /// Bytes of gradients that are exchanged together.
    bucket: usize,
    /// The connections for weights, if they are divided: gradients are exchanged at the same time.
    parameters: Option<Arc<ProcessGroup>>,
}

/// Settings of [`Shards`].
#[derive(Clone, Copy)]
pub(crate) struct ShardSettings {
    /// `trainer.gradient_shards`; 0: one for each rank.
    pub(crate) count: usize,
    pub(crate) zero_stage: usize,
    pub(crate) bucket_cap_mb: f64,
}

impl From<&Learner> for ShardSettings {
    fn from(of: &Learner) -> Self {
        Self { count: of.gradient_shards, zero_stage: of.zero_stage, bucket_cap_mb: of.bucket_cap_mb }
    }
}

impl From<&Sft> for ShardSettings {
    fn from(of: &Sft) -> Self {
        Self { count: of.gradient_shards, zero_stage: of.zero_stage, bucket_cap_mb: of.bucket_cap_mb }
    }
}

/// Work that is done between the micro-batches of an update.
pub(crate) trait Interleaved {
    /// Called before each micro-batch.
    fn turn(&self);

    /// Called before the weights change.
    fn before_step(&self, ranks: &Ranks) -> Result<()>;
}

impl Default for Shards {
    /// One process and one shard.
    fn default() -> Self {
        Self {
            ranks: Ranks::default(),
            count: 1,
            writes_parts: false,
            beside: None,
            zero_stage: 0,
            bucket: 1 << 20,
            parameters: None,
        }
    }
}

impl Shards {
    /// The shards of a run. All ranks call it at the same time.
    ///
    /// # Errors
    /// `Kind::Usage` if the ranks can't have the same number of shards.
    pub(crate) fn new(ranks: &Ranks, settings: ShardSettings) -> Result<Self> {
        let ShardSettings { count, zero_stage, bucket_cap_mb } = settings;
        let (ranks, size) = (ranks.clone(), ranks.size());
        let count = if count == 0 { size } else { count };
        // The shards of a rank are a whole part of the tree.
        let divides = size == 1 || (count.is_multiple_of(size) && (count / size).is_power_of_two());
        if !divides {
            let shards = counted(count, "gradient shard", "gradient shards");
            return Err(Error::new(Kind::Usage, format!("{shards} can't be divided among {size} processes"))
                .at("trainer.gradient_shards")
                .hint("choose the number of processes times 1, 2, 4 or 8; 0 is one for each process"));
        }
        let parameters = match ranks.group() {
            Some(group) if zero_stage >= 3 => Some(Arc::new(group.first("parameters", size)?)),
            _ => None,
        };
        let bucket = (bucket_cap_mb * f64::from(1 << 20)) as usize;
        Ok(Self { ranks, count, zero_stage, bucket, parameters, ..Self::default() })
    }

    /// With work between the micro-batches.
    #[must_use]
    pub(crate) fn beside(self, work: Rc<dyn Interleaved>) -> Self {
        Self { beside: Some(work), ..self }
    }

    /// Called before each micro-batch, for other work.
    pub(crate) fn turn(&self) {
        if let Some(beside) = &self.beside {
            beside.turn();
        }
    }

    /// Called before each optimiser step of the policy.
    pub(crate) fn before_step(&self) -> Result<()> {
        self.beside.as_ref().map_or(Ok(()), |beside| beside.before_step(&self.ranks))
    }

    /// The connections to the other ranks.
    pub(super) fn group(&self) -> Option<&Arc<ProcessGroup>> {
        self.ranks.group()
    }

    /// The connections for weights, if these are divided.
    pub(super) fn parameters(&self) -> Option<&Arc<ProcessGroup>> {
        self.parameters.as_ref()
    }

    /// What the ranks divide among them.
    pub(super) fn zero_stage(&self) -> usize {
        self.zero_stage
    }

    /// Bytes of gradients that are exchanged together.
    pub(super) fn bucket(&self) -> usize {
        self.bucket
    }

    /// The number of shards.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The shards that this rank computes.
    pub(crate) fn local(&self) -> std::ops::Range<usize> {
        let each = self.count / self.ranks.size();
        self.ranks.rank() * each..(self.ranks.rank() + 1) * each
    }

    /// The micro-batches of a shard, with their numbers.
    pub(crate) fn of<'a, T>(&self, shard: usize, micro_batches: &'a [T]) -> impl Iterator<Item = (usize, &'a T)> {
        micro_batches.iter().enumerate().skip(shard).step_by(self.count)
    }

    /// The micro-batches that this rank computes, with their numbers.
    pub(crate) fn local_of<'a, T>(&self, micro_batches: &'a [T]) -> impl Iterator<Item = (usize, &'a T)> {
        self.local().flat_map(move |shard| self.of(shard, micro_batches))
    }

    /// What all ranks computed for their micro-batches, in the order of the micro-batches.
    pub(crate) fn gather<T: Serialize + DeserializeOwned>(&self, local: Vec<(usize, T)>) -> Result<Vec<T>> {
        let mut all: Vec<(usize, T)> = self.ranks.gather(local)?.into_iter().flatten().collect();
        all.sort_by_key(|(number, _)| *number);
        Ok(all.into_iter().map(|(_, value)| value).collect())
    }

    /// The lists of all ranks, one after the other.
    pub(crate) fn gather_all<T: Serialize + DeserializeOwned>(&self, local: Vec<T>) -> Result<Vec<T>> {
        Ok(self.ranks.gather(local)?.into_iter().flatten().collect())
    }

    /// Divides the state of an optimiser of a model with `layers` layers among the processes, from
    /// `trainer.zero_stage` 1 on.
    pub(crate) fn divide(&self, optimizer: &mut AdamW, layers: usize) -> Result<()> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        if self.zero_stage == 0 || size == 1 {
            return Ok(());
        }
        // Weights that are divided have the same owner as their state.
        let owner = |name: &str| layer_of(name).map(|layer| owner_of_layer(layer, layers, size));
        optimizer.divide(rank, size, |name| owner(name).filter(|_| self.zero_stage >= 3))
    }

    /// One optimiser step, [`AdamW::step`]. If the state is divided, the processes exchange the
    /// weights that each has updated.
    pub(crate) fn step(&self, optimizer: &mut AdamW, lr: f64, max_norm: f64) -> Result<f64> {
        let norm = if self.zero_stage >= 2 && optimizer.is_divided() {
            optimizer.step_with_norms(lr, max_norm, |local| {
                // Each tensor has a norm on one rank, and 0 on the others.
                let all = self.ranks.gather(local)?;
                let sums = (0..all[0].len()).map(|tensor| all.iter().map(|norms| norms[tensor]).sum());
                Ok(sums.collect())
            })?
        } else {
            optimizer.step(lr, max_norm)?
        };
        if let Some(group) = self.ranks.group().filter(|_| optimizer.is_divided()) {
            optimizer.exchange_weights(group.size(), &|sent| group.gather_tensor(sent))?;
        }
        Ok(norm)
    }

    /// Whether each process writes its part of the state of a divided optimiser.
    pub(crate) fn set_writes_parts(&mut self, writes_parts: bool) {
        self.writes_parts = writes_parts;
    }

    /// The state of an optimiser, for a checkpoint, as the file `NAME.safetensors`: the whole one,
    /// or the part of this process in a file of its own. If the state is divided and rank 0 writes
    /// it, all processes call it at the same time.
    pub(crate) fn state(&self, name: &str, what: &'static str, optimizer: &AdamW) -> Result<UnwrittenFile> {
        let mut file = format!("{name}.safetensors");
        let state = match self.ranks.group().filter(|_| optimizer.is_divided()) {
            Some(group) if self.writes_parts => {
                file = format!("{name}-{:05}-of-{:05}.safetensors", group.rank() + 1, group.size());
                optimizer.state()
            }
            Some(group) => optimizer.whole_state(group.size(), &|sent| group.gather_tensor(sent))?,
            None => optimizer.state(),
        };
        Ok(UnwrittenFile::tensors(file, what, &state))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn micro_batches_are_dealt_to_shards() {
        let shards = Shards { count: 2, ..Shards::default() };
        let of = |shard| shards.of(shard, &["a", "b", "c"]).map(|(number, _)| number).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![0, 2], vec![1]));
        assert_eq!(shards.local_of(&[1, 2, 3]).map(|(number, _)| number).collect::<Vec<_>>(), [0, 2, 1]);
        assert_eq!(shards.gather(vec![(2, 'c'), (0, 'a'), (1, 'b')]).unwrap(), ['a', 'b', 'c']);
    }
}
