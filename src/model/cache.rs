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
    /// Per layer, [slots, Hkv, capacity / panel, D, panel]: the keys of a panel lie side by side, as the native code
    /// multiplies them.
    pub(super) keys: Vec<Tensor>,
    /// Per layer, `[slots, Hkv, capacity, D]`.
    pub(super) values: Vec<Tensor>,
    slots: usize,
    capacity: usize,
    pub(super) panel: usize,
    heads: usize,
    head_dim: usize,
}

impl KvCache {
    /// Capacities are multiples of this, as every width of the native code's panels divides it.
    pub const GRAIN: usize = 64;

    /// `panel` is the number of keys that lie side by side; 1 for plain operations. `kind` is that of keys and values.
    pub(super) fn new(
        config: &Config,
        slots: usize,
        capacity: usize,
        panel: usize,
        device: Device,
        kind: Kind,
    ) -> Self {
        let capacity = capacity.max(1).next_multiple_of(Self::GRAIN);
        let (heads, head_dim) = (config.num_key_value_heads, config.head_dim);
        let mut new = Self { keys: Vec::new(), values: Vec::new(), slots, capacity, panel, heads, head_dim };
        for _ in 0..config.num_hidden_layers {
            new.keys.push(Tensor::zeros(new.keys_shape(capacity), (kind, device)));
            new.values.push(Tensor::zeros(new.values_shape(capacity), (kind, device)));
        }
        new
    }

    fn keys_shape(&self, capacity: usize) -> [i64; 5] {
        [self.slots, self.heads, capacity / self.panel, self.head_dim, self.panel].map(|size| size as i64)
    }

    fn values_shape(&self, capacity: usize) -> [i64; 4] {
        [self.slots, self.heads, capacity, self.head_dim].map(|size| size as i64)
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

    /// Makes room for `tokens` in every slot, keeping what is there. Everything is copied: whoever
    /// grows token by token should ask for more at once.
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        if tokens <= self.capacity {
            return Ok(());
        }
        let capacity = tokens.next_multiple_of(Self::GRAIN);
        let _guard = tch::no_grad_guard();
        for layer in 0..self.keys.len() {
            let keys = grown(&self.keys[layer], &self.keys_shape(capacity))?;
            let values = grown(&self.values[layer], &self.values_shape(capacity))?;
            (self.keys[layer], self.values[layer]) = (keys, values);
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
        let panels = length.div_ceil(self.panel);
        for (tensors, count) in [(&self.keys, panels), (&self.values, length)] {
            for tensor in tensors {
                let source = tensor.f_select(0, from as i64)?.f_narrow(1, 0, count as i64)?;
                tensor.f_select(0, to as i64)?.f_narrow(1, 0, count as i64)?.f_copy_(&source)?;
            }
        }
        Ok(())
    }
}

/// A larger tensor of the shape, which differs in dimension 2, with the old one at its start.
fn grown(old: &Tensor, shape: &[i64]) -> Result<Tensor> {
    let new = Tensor::f_zeros(shape, (old.kind(), old.device()))?;
    new.f_narrow(2, 0, old.size()[2])?.f_copy_(old)?;
    Ok(new)
}
