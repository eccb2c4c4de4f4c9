//! The gradient of an optimiser step: the sum over its micro-batches, shards and processes. Sums of
//! layers are exchanged while the layers below are computed.

use std::mem;

use tch::Tensor;

use super::gradient_exchange::{GradientExchange, add_to};
use super::parameter_shards::ParameterShards;
use super::shards::Shards;
use crate::adamw::{AdamW, GradientTree};
use crate::error::Result;
use crate::model::{LayerHooks, Model, Packed, Pass, layer_of};

/// Hands out the micro-batches of this process, and adds their gradients.
///
/// Without `trainer.zero_stage`, or with stage 1, the gradients of a shard are the sum over its
/// micro-batches, and the sums of all shards are added as a tree. From stage 2 on, the shards'
/// first micro-batches are added as a tree, then their second ones, and so on: a process does not
/// hold the gradients of tensors that it does not own for longer than one backward pass.
pub(crate) struct GradientSum {
    shards: Shards,
    /// The micro-batches of this process in their order.
    leaves: Vec<Leaf>,
    /// The current leaf, and the number of its micro-batches that are handed out.
    current: (usize, usize),
    tree: GradientTree,
    /// The optimiser's tensors of each layer, and those of no layer.
    layers: Vec<Vec<usize>>,
    rest: Vec<usize>,
    /// Layers from this number on are in the sum of this round.
    above: usize,
    /// The gradients of the step, by tensor.
    sums: Vec<Option<Tensor>>,
    exchange: Option<GradientExchange>,
    parameters: Option<ParameterShards>,
}

/// A leaf of the tree: micro-batches whose gradients are added one after the other.
struct Leaf {
    micro_batches: Vec<usize>,
    /// The tree is complete after it.
    ends_tree: bool,
}

impl GradientSum {
    /// For an optimiser step over `count` micro-batches through `model`; `None` if only a head is
    /// trained.
    pub(crate) fn new(shards: &Shards, optimizer: &AdamW, count: usize, model: Option<&Model>) -> Result<Self> {
        Self::with_exchange(shards, optimizer, (count, model), true)
    }

    /// For a head of the model of another sum, which is finished first: one sum at a time exchanges
    /// in the background.
    pub(crate) fn of_head(shards: &Shards, optimizer: &AdamW, count: usize) -> Result<Self> {
        Self::with_exchange(shards, optimizer, (count, None), false)
    }

    fn with_exchange(
        shards: &Shards,
        optimizer: &AdamW,
        (count, model): (usize, Option<&Model>),
        in_background: bool,
    ) -> Result<Self> {
        let tensors = optimizer.tensors();
        let mut layers: Vec<Vec<usize>> = Vec::new();
        let mut rest = Vec::new();
        for (number, name) in optimizer.names().enumerate() {
            match layer_of(name).filter(|_| shards.group().is_some()) {
                Some(layer) => {
                    layers.resize_with(layers.len().max(layer + 1), Vec::new);
                    layers[layer].push(number);
                }
                None => rest.push(number),
            }
        }
        let exchange = shards.group().map(|group| {
            let owners = (0..tensors).map(|number| optimizer.owner(number)).collect();
            let for_owners = shards.zero_stage() >= 2;
            GradientExchange::new(group, for_owners.then_some(owners), shards.bucket(), in_background)
        });
        let divided = model.filter(|_| shards.zero_stage() >= 3 && count > 0);
        let parameters = divided.map(|model| ParameterShards::release(shards.parameters(), model)).transpose()?;
        Ok(Self {
            leaves: leaves(shards, count),
            shards: shards.clone(),
            current: (0, 0),
            tree: GradientTree::default(),
            above: layers.len(),
            layers,
            rest,
            sums: (0..tensors).map(|_| None).collect(),
            exchange,
            parameters,
        })
    }

    /// Whether the gradients stay where `backward` adds them.
    fn is_plain(&self) -> bool {
        self.exchange.is_none() && self.shards.count() == 1
    }

    /// The number of the next micro-batch of this process; `None` after the last one.
    ///
    /// # Errors
    /// Errors of the exchange, here and in the other functions.
    pub(crate) fn next(&mut self, optimizer: &mut AdamW) -> Result<Option<usize>> {
        while let Some(leaf) = self.leaves.get(self.current.0) {
            if let Some(&number) = leaf.micro_batches.get(self.current.1) {
                self.current.1 += 1;
                return Ok(Some(number));
            }
            let (ends_tree, is_empty) = (leaf.ends_tree, leaf.micro_batches.is_empty());
            if is_empty && let Some(parameters) = &mut self.parameters {
                parameters.serve_pass()?;
            }
            if ends_tree {
                self.end_tree(optimizer)?;
            } else {
                self.tree.push(optimizer)?;
            }
            self.current = (self.current.0 + 1, 0);
        }
        Ok(None)
    }

    /// [`Model::learn`] for the last micro-batch that was handed out.
    pub(crate) fn learn<'a>(&mut self, model: &'a Model, batch: &Packed) -> Result<Pass<'a>> {
        if let Some(parameters) = &mut self.parameters {
            return model.learn_recomputed(batch, &mut ForwardHooks { parameters });
        }
        if self.adds_layers() { model.learn_by_layer(batch) } else { model.learn(batch) }
    }

    /// Backward of the last micro-batch that was handed out.
    pub(crate) fn backward(&mut self, pass: Pass<'_>, loss: &Tensor, optimizer: &mut AdamW) -> Result<()> {
        if self.parameters.is_some() || self.adds_layers() {
            let adds = self.adds_layers();
            pass.backward_by_layer(loss, &mut BackwardHooks { sum: self, optimizer, adds })?;
        } else {
            pass.backward(loss)?;
        }
        self.accumulate(optimizer)
    }

    /// Backward of the last micro-batch that was handed out, through a head alone.
    pub(crate) fn backward_head(&self, loss: &Tensor, optimizer: &mut AdamW) -> Result<()> {
        loss.f_backward()?;
        self.accumulate(optimizer)
    }

    fn accumulate(&self, optimizer: &mut AdamW) -> Result<()> {
        // In the type of the moments, unless it is the only one.
        let is_one = self.leaves.get(self.current.0).is_none_or(|leaf| leaf.micro_batches.len() == 1);
        if is_one { Ok(()) } else { optimizer.accumulate() }
    }

    /// Whether the current micro-batch is the last one of a tree, so that the sum of a layer is
    /// complete after its backward pass.
    fn adds_layers(&self) -> bool {
        let leaf = self.leaves.get(self.current.0);
        self.exchange.is_some() && leaf.is_some_and(|leaf| leaf.ends_tree && leaf.micro_batches.len() == self.current.1)
    }

    /// Adds the gradients of the layers from `layer` on to the sum.
    fn add_layers(&mut self, layer: usize, optimizer: &mut AdamW) -> Result<()> {
        while self.above > layer {
            self.above -= 1;
            let tensors = mem::take(&mut self.layers[self.above]);
            self.add(&tensors, optimizer)?;
            self.layers[self.above] = tensors;
        }
        Ok(())
    }

    fn end_tree(&mut self, optimizer: &mut AdamW) -> Result<()> {
        if self.is_plain() {
            return Ok(());
        }
        self.add_layers(0, optimizer)?;
        let rest = mem::take(&mut self.rest);
        self.add(&rest, optimizer)?;
        self.rest = rest;
        if let Some(exchange) = &mut self.exchange {
            exchange.send(&mut self.sums)?;
        }
        self.tree.clear();
        self.above = self.layers.len();
        Ok(())
    }

    fn add(&mut self, tensors: &[usize], optimizer: &mut AdamW) -> Result<()> {
        for (gradient, &number) in self.tree.complete(optimizer, tensors)?.into_iter().zip(tensors) {
            match &mut self.exchange {
                Some(exchange) => {
                    let gradient = gradient.map_or_else(|| optimizer.no_gradient(number), Ok)?;
                    exchange.add(number, gradient, &mut self.sums)?;
                }
                None => add_to(&mut self.sums[number], gradient)?,
            }
        }
        Ok(())
    }

    /// Waits for the exchange, and sets the sum as the gradients of the optimiser's next step.
    pub(crate) fn finish(mut self, optimizer: &mut AdamW) -> Result<()> {
        if let Some(exchange) = self.exchange.take() {
            exchange.finish(&mut self.sums)?;
        }
        if let Some(parameters) = self.parameters.take() {
            parameters.restore()?;
        }
        if let (Some(group), Some(parameters)) = (self.shards.group(), self.shards.parameters()) {
            group.add_traffic_of(parameters);
        }
        if !self.is_plain() && !self.leaves.is_empty() {
            optimizer.set_gradients(mem::take(&mut self.sums));
        }
        Ok(())
    }
}

/// The leaves of this process.
fn leaves(shards: &Shards, count: usize) -> Vec<Leaf> {
    let numbers: Vec<usize> = (0..count).collect();
    let of = |shard| shards.of(shard, &numbers).map(|(number, _)| number);
    let last = shards.local().end - 1;
    // Trees of the shards' first micro-batches, of their second ones, …; or one tree. One process
    // with one shard has nothing to divide.
    let by_turn = shards.zero_stage() >= 2 && (shards.group().is_some() || shards.count() > 1);
    let trees = if by_turn { count.div_ceil(shards.count()) } else { count.min(1) };
    let leaf = |tree: usize, shard: usize| {
        let micro_batches = if by_turn { of(shard).skip(tree).take(1).collect() } else { of(shard).collect() };
        Leaf { micro_batches, ends_tree: shard == last }
    };
    (0..trees)
        .flat_map(|tree| shards.local().map(move |shard| (tree, shard)))
        .map(|(tree, shard)| leaf(tree, shard))
        .collect()
}

struct ForwardHooks<'a> {
    parameters: &'a mut ParameterShards,
}

impl LayerHooks for ForwardHooks<'_> {
    fn before(&mut self, layer: usize) -> Result<()> {
        self.parameters.gather(layer)
    }

    fn after_forward(&mut self, layer: usize) -> Result<()> {
        self.parameters.free(layer)
    }
}

struct BackwardHooks<'a> {
    sum: &'a mut GradientSum,
    optimizer: &'a mut AdamW,
    /// Whether the sums of the layers are complete.
    adds: bool,
}

impl LayerHooks for BackwardHooks<'_> {
    fn before(&mut self, layer: usize) -> Result<()> {
        self.sum.parameters.as_mut().map_or(Ok(()), |parameters| parameters.gather(layer))
    }

    fn after_backward(&mut self, layer: usize) -> Result<()> {
        if self.adds {
            self.sum.add_layers(layer, self.optimizer)?;
        }
        self.sum.parameters.as_mut().map_or(Ok(()), |parameters| parameters.free(layer))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::train::ranks::Ranks;
    use crate::train::shards::ShardSettings;

    /// The micro-batches of each leaf; `true` for the last one of a tree.
    fn of(count: usize, zero_stage: usize, micro_batches: usize) -> Vec<(Vec<usize>, bool)> {
        let settings = ShardSettings { count, zero_stage, bucket_cap_mb: 1.0 };
        let shards = Shards::new(&Ranks::default(), settings).unwrap();
        leaves(&shards, micro_batches).into_iter().map(|leaf| (leaf.micro_batches, leaf.ends_tree)).collect()
    }

    #[test]
    fn micro_batches_are_added_by_shard_or_by_turn() {
        let by_shard = [(vec![0, 4], false), (vec![1, 5], false), (vec![2], false), (vec![3], true)];
        for stage in [0, 1] {
            assert_eq!(of(4, stage, 6), by_shard);
        }
        let first = [(vec![0], false), (vec![1], true)];
        let second = [(vec![2], false), (vec![], true)];
        assert_eq!(of(2, 2, 3), [first, second].concat());
        // A single shard of one process is added up where backward leaves its gradients.
        assert_eq!(of(1, 3, 3), [(vec![0, 1, 2], true)]);
        assert!(of(2, 0, 0).is_empty() && of(2, 2, 0).is_empty());
    }
}
