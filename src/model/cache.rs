//! Keys and values of the sequences being generated, one slot each.

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use super::Config;
use super::decode::Recorded;
use crate::error;
use crate::error::{Error, Result};
use crate::native::Arena;

/// Keys and values of every layer for a number of slots; a slot holds one sequence of up to `capacity` tokens.
///
/// Which tokens a slot holds is its owner's business: a position is valid once a span wrote it.
#[derive(Debug)]
pub struct KvCache {
    /// Per layer, as the layout says.
    pub(super) keys: Vec<Tensor>,
    pub(super) values: Vec<Tensor>,
    /// Steps of one token a sequence that were recorded over these tensors.
    pub(super) recorded: Vec<Recorded>,
    /// The experts of the tokens of the last step, by sparse layer, where they are recorded.
    pub(super) routes: Option<RefCell<Vec<Tensor>>>,
    slots: usize,
    capacity: usize,
    pub(super) layout: Layout,
    heads: usize,
    head_dim: usize,
}

/// How keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// For the native code: keys [slots, Hkv, capacity / panel, D, panel], so many of a panel side by side, as it multiplies
    /// them; values `[slots, Hkv, capacity, D]`.
    Panels(usize),
    /// Both `[slots, capacity, Hkv, D]`, with so many slots to spare.
    Tokens { spare: usize },
}

impl KvCache {
    /// Capacities are multiples of this, as every width of the native code's panels divides it.
    pub const GRAIN: usize = 64;

    /// `kind` is that of keys and values.
    pub(super) fn new(
        config: &Config,
        slots: usize,
        capacity: usize,
        layout: Layout,
        device: Device,
        kind: Kind,
    ) -> Result<Self> {
        let capacity = capacity.max(1).next_multiple_of(Self::GRAIN);
        let (heads, head_dim) = (config.num_key_value_heads, config.head_dim);
        let (keys, values, recorded) = (Vec::new(), Vec::new(), Vec::new());
        let mut new = Self { keys, values, recorded, routes: None, slots, capacity, layout, heads, head_dim };
        let arena = Arena::new();
        for _ in 0..config.num_hidden_layers {
            new.keys.push(arena.take(&new.keys_shape(capacity), (kind, device))?.f_zero_()?);
            new.values.push(arena.take(&new.values_shape(capacity), (kind, device))?.f_zero_()?);
        }
        Ok(new)
    }

    fn keys_shape(&self, capacity: usize) -> Vec<i64> {
        let shape = match self.layout {
            Layout::Panels(panel) => vec![self.slots, self.heads, capacity / panel, self.head_dim, panel],
            Layout::Tokens { spare } => vec![self.slots + spare, capacity, self.heads, self.head_dim],
        };
        shape.into_iter().map(|size| size as i64).collect()
    }

    fn values_shape(&self, capacity: usize) -> Vec<i64> {
        match self.layout {
            Layout::Panels(_) => [self.slots, self.heads, capacity, self.head_dim].map(|size| size as i64).to_vec(),
            Layout::Tokens { .. } => self.keys_shape(capacity),
        }
    }

    /// The dimension that tokens, or panels of them, are counted in.
    fn along(&self) -> i64 {
        if matches!(self.layout, Layout::Panels(_)) { 2 } else { 1 }
    }

    /// Sequences held at once.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Tokens a slot has room for now; [`reserve`](Self::reserve) and a longer span raise it.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Memory held, bytes.
    pub fn bytes(&self) -> usize {
        let element = self.keys.first().map_or(0, |tensor| tensor.kind().elt_size_in_bytes());
        let numbers: usize = self.keys.iter().chain(&self.values).map(Tensor::numel).sum();
        numbers * element
    }

    /// Makes room for `tokens` in every slot, keeping what is there. Everything is copied: whoever
    /// grows token by token should ask for more at once.
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        if tokens <= self.capacity {
            return Ok(());
        }
        let capacity = tokens.next_multiple_of(Self::GRAIN);
        let _guard = tch::no_grad_guard();
        let arena = Arena::new();
        for layer in 0..self.keys.len() {
            let keys = grown(&arena, &self.keys[layer], &self.keys_shape(capacity), self.along())?;
            let values = grown(&arena, &self.values[layer], &self.values_shape(capacity), self.along())?;
            (self.keys[layer], self.values[layer]) = (keys, values);
        }
        self.capacity = capacity;
        self.recorded.clear();
        Ok(())
    }

    /// Copies the first `length` tokens of slot `from` to slot `to`.
    pub fn copy_prefix(&mut self, from: usize, to: usize, length: usize) -> Result<()> {
        if from >= self.slots || to >= self.slots || length > self.capacity {
            return Err(Error::new(
                error::Kind::Internal,
                format!(
                    "cache copy of {length} tokens from slot {from} to {to} is outside {} slots of {}",
                    self.slots, self.capacity
                ),
            ));
        }
        if from == to || length == 0 {
            return Ok(());
        }
        let _guard = tch::no_grad_guard();
        let keys = if let Layout::Panels(panel) = self.layout { length.div_ceil(panel) } else { length };
        // One dimension less once a slot is chosen.
        let along = self.along() - 1;
        for (tensors, count) in [(&self.keys, keys), (&self.values, length)] {
            for tensor in tensors {
                let source = tensor.f_select(0, from as i64)?.f_narrow(along, 0, count as i64)?;
                tensor.f_select(0, to as i64)?.f_narrow(along, 0, count as i64)?.f_copy_(&source)?;
            }
        }
        Ok(())
    }
}

/// A larger tensor of the shape, which differs in dimension `along`, with the old one at its start.
fn grown(arena: &Arena, old: &Tensor, shape: &[i64], along: i64) -> Result<Tensor> {
    let new = arena.take(shape, (old.kind(), old.device()))?.f_zero_()?;
    new.f_narrow(along, 0, old.size()[along as usize])?.f_copy_(old)?;
    Ok(new)
}
