//! Keys and values of the sequences being generated, one slot each.

use tch::{Device, Kind, Tensor};

use super::Config;
use crate::error;
use crate::error::{Error, Result};

/// Keys and values of every layer for a number of slots; a slot holds one sequence of up to `capacity` tokens.
///
/// Which tokens a slot holds is its owner's business: a position is valid once a span wrote it.
#[derive(Debug)]
pub struct KvCache {
    /// Per layer, [slots, Hkv, capacity, D].
    pub(super) keys: Vec<Tensor>,
    /// Per layer, [slots, Hkv, capacity, D].
    pub(super) values: Vec<Tensor>,
    slots: usize,
    capacity: usize,
    heads: usize,
    head_dim: usize,
}

impl KvCache {
    pub(super) fn new(config: &Config, slots: usize, capacity: usize, device: Device, kind: Kind) -> Self {
        let (heads, head_dim) = (config.num_key_value_heads, config.head_dim);
        let shape = [slots as i64, heads as i64, capacity as i64, head_dim as i64];
        let make = || (0..config.num_hidden_layers).map(|_| Tensor::zeros(shape, (kind, device))).collect();
        Self { keys: make(), values: make(), slots, capacity, heads, head_dim }
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
        2 * self.keys.len() * self.slots * self.heads * self.capacity * self.head_dim * element
    }

    /// Makes room for `tokens` in every slot (rounded up to 16), keeping what is there. Everything is copied: whoever
    /// grows token by token should ask for more at once.
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        if tokens <= self.capacity {
            return Ok(());
        }
        let capacity = tokens.next_multiple_of(16);
        let _guard = tch::no_grad_guard();
        for tensor in self.keys.iter_mut().chain(&mut self.values) {
            let shape = [self.slots as i64, self.heads as i64, capacity as i64, self.head_dim as i64];
            let grown = Tensor::f_zeros(shape, (tensor.kind(), tensor.device()))?;
            grown.f_narrow(2, 0, self.capacity as i64)?.f_copy_(tensor)?;
            *tensor = grown;
        }
        self.capacity = capacity;
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
        for tensor in self.keys.iter().chain(&self.values) {
            let source = tensor.f_select(0, from as i64)?.f_narrow(1, 0, length as i64)?;
            tensor.f_select(0, to as i64)?.f_narrow(1, 0, length as i64)?.f_copy_(&source)?;
        }
        Ok(())
    }
}
