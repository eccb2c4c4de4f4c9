//! The shards of an optimiser step: which process computes which micro-batches, and the sum of
//! their gradients (docs/lab/decisions/0032).

use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ranks::Ranks;
use crate::adamw::{AdamW, GradientTree};
use crate::error::{Error, Kind, Result};
use crate::model::UnwrittenFile;
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
        Self { ranks: Ranks::default(), count: 1, writes_parts: false, beside: None }
    }
}

impl Shards {
    /// `count` shards; 0: one for each rank.
    ///
    /// # Errors
    /// `Kind::Usage` if the ranks can't have the same number of shards.
    pub(crate) fn new(ranks: &Ranks, count: usize) -> Result<Self> {
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
        Ok(Self { ranks, count, writes_parts: false, beside: None })
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

    /// Divides the state of an optimiser among the processes (ZeRO-1).
    pub(crate) fn divide(&self, optimizer: &mut AdamW) -> Result<()> {
        if self.ranks.size() > 1 { optimizer.divide(self.ranks.rank(), self.ranks.size()) } else { Ok(()) }
    }

    /// One optimiser step, [`AdamW::step`]. If the state is divided, the processes exchange the
    /// weights that each has updated.
    pub(crate) fn step(&self, optimizer: &mut AdamW, lr: f64, max_norm: f64) -> Result<f64> {
        let norm = optimizer.step(lr, max_norm)?;
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

    /// Starts the sum of the gradients of an optimiser's tensors.
    pub(crate) fn begin(&self) -> ShardSum {
        ShardSum { tree: (self.count > 1).then(GradientTree::default) }
    }

    /// Sums the gradients over all ranks: the gradients of the optimiser's next step.
    pub(crate) fn reduce(&self, optimizer: &mut AdamW) -> Result<()> {
        match self.ranks.group() {
            Some(group) => optimizer.reduce_gradients(|gradients| group.sum(gradients)),
            None => Ok(()),
        }
    }
}

/// The sum of the gradients of a rank's shards. With one shard the gradients stay where `backward`
/// adds them.
pub(crate) struct ShardSum {
    tree: Option<GradientTree>,
}

impl ShardSum {
    /// The micro-batches of a shard are computed.
    pub(crate) fn shard_is_done(&mut self, optimizer: &mut AdamW) -> Result<()> {
        self.tree.as_mut().map_or(Ok(()), |tree| tree.push(optimizer))
    }

    /// Sets the sum as the gradients of the optimiser.
    pub(crate) fn finish(self, optimizer: &mut AdamW) -> Result<()> {
        self.tree.map_or(Ok(()), |tree| tree.finish(optimizer))
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
