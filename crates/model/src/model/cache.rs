//! Key-value cache of generation, one slot per sequence.

use std::cell::RefCell;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::Config;
use super::decode_ahead::Prepared;
use super::transfer::zeros;
use crate::native::Arena;
use r1_base::error;
use r1_base::error::{Error, Result};

/// Keys and values of every layer for a number of slots; a slot holds one sequence of up to
/// `capacity` tokens.
///
/// The owner tracks the tokens of each slot: a position is valid after a span wrote it.
#[derive(Debug)]
pub struct KvCache {
    /// One tensor per layer, in the format of `layout`.
    pub(super) keys: Vec<Tensor>,
    pub(super) values: Vec<Tensor>,
    /// [2, slots + 1] i64 on the device: id and position of the next token of each slot, for decode
    /// steps. The last column is of the spare slot, which pads recorded steps.
    pub(super) next: Tensor,
    /// Decode steps over these tensors, as CUDA graphs where they are recorded.
    pub(super) prepared: Vec<Prepared>,
    /// Time that recording steps took.
    pub(super) recording: Duration,
    /// The execution mode of the last step for its sequences of one token.
    pub(super) decoding: Decoding,
    /// Experts of the tokens of the last step, per sparse layer, if recorded.
    pub(super) routes: Option<RefCell<Vec<Tensor>>>,
    /// Addresses of the tensors before their memory was released, while it is.
    released: Option<Vec<usize>>,
    options: (Kind, Device),
    slots: usize,
    capacity: usize,
    pub(super) layout: Layout,
    heads: usize,
    head_dim: usize,
}

/// The execution mode of a step for its sequences of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoding {
    /// It had none.
    None,
    /// As single operations, because graphs are off or the model does not allow them.
    Eager,
    /// As the operations that a graph consists of, on a device without graphs.
    Recordable,
    /// As a launch of a CUDA graph.
    Graph,
}

/// Memory layout of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// For the CPU kernels: keys [slots, Hkv, capacity / panel, D, panel], values `[slots, Hkv,
    /// capacity, D]`.
    Panels(usize),
    /// Keys and values `[slots, capacity, Hkv, D]`, with this number of spare slots.
    Tokens { spare: usize },
}

impl KvCache {
    /// Capacities are multiples of this number, which is a multiple of every panel width of the CPU
    /// kernels.
    pub const GRAIN: usize = 64;

    /// Creates a cache with keys and values of type `kind`.
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
        let mut new = Self {
            keys: Vec::new(),
            values: Vec::new(),
            next: zeros(&[2, slots as i64 + 1], Kind::Int64, device)?,
            prepared: Vec::new(),
            recording: Duration::ZERO,
            decoding: Decoding::None,
            routes: None,
            released: None,
            options: (kind, device),
            slots,
            capacity,
            layout,
            heads,
            head_dim,
        };
        new.allocate(config.num_hidden_layers)?;
        Ok(new)
    }

    fn allocate(&mut self, layers: usize) -> Result<()> {
        let arena = Arena::new();
        for _ in 0..layers {
            self.keys.push(arena.take(&self.keys_shape(self.capacity), self.options)?.f_zero_()?);
            self.values.push(arena.take(&self.values_shape(self.capacity), self.options)?.f_zero_()?);
        }
        Ok(())
    }

    /// Frees the memory of keys and values, with their content. [`restore`](Self::restore)
    /// allocates it again. Recorded graphs stay, and are used again if the addresses are the same.
    pub fn release(&mut self) {
        if self.released.is_none() {
            self.released = Some(self.addresses());
            (self.keys, self.values) = (Vec::new(), Vec::new());
        }
    }

    /// Whether the memory is released.
    pub fn is_released(&self) -> bool {
        self.released.is_some()
    }

    /// Allocates the memory again after [`release`](Self::release). All slots are empty.
    pub fn restore(&mut self) -> Result<()> {
        let Some(before) = self.released.take() else { return Ok(()) };
        let _guard = tch::no_grad_guard();
        if let Err(error) = self.allocate(before.len() / 2) {
            (self.keys, self.values) = (Vec::new(), Vec::new());
            self.released = Some(before);
            return Err(error);
        }
        if self.addresses() != before {
            self.prepared.clear();
            self.recording = Duration::ZERO;
        }
        Ok(())
    }

    fn addresses(&self) -> Vec<usize> {
        self.keys.iter().chain(&self.values).map(|tensor| tensor.data_ptr() as usize).collect()
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

    /// Dimension of tokens, or of panels of tokens.
    fn along(&self) -> i64 {
        if matches!(self.layout, Layout::Panels(_)) { 2 } else { 1 }
    }

    pub(super) fn device(&self) -> Device {
        self.options.1
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Current capacity per slot, tokens; [`reserve`](Self::reserve) and longer spans increase it.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The execution mode of the last step for its sequences of one token.
    pub fn decoding(&self) -> Decoding {
        self.decoding
    }

    /// Memory of the cache, bytes.
    pub fn bytes(&self) -> usize {
        let element = self.keys.first().map_or(0, |tensor| tensor.kind().elt_size_in_bytes());
        let numbers: usize = self.keys.iter().chain(&self.values).map(Tensor::numel).sum();
        numbers * element
    }

    /// Refuses slots of a step that are out of range or given twice.
    pub(super) fn check_slots(&self, slots: impl Iterator<Item = usize>) -> Result<()> {
        let mut used = vec![false; self.slots];
        for slot in slots {
            let why = match used.get_mut(slot) {
                None => format!("slot {slot} is outside the cache of {}", self.slots),
                Some(true) => format!("slot {slot} is given twice in one step"),
                Some(free) => {
                    *free = true;
                    continue;
                }
            };
            return Err(Error::new(error::Kind::Internal, why));
        }
        Ok(())
    }

    /// Grows every slot to at least `tokens`, keeping its content. This copies the cache, so grow
    /// in large increments.
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        if tokens <= self.capacity {
            return Ok(());
        }
        let capacity = tokens.next_multiple_of(Self::GRAIN);
        let _guard = tch::no_grad_guard();
        // Graphs hold the addresses of the old tensors; their memory goes back first.
        self.prepared.clear();
        let arena = Arena::new();
        for layer in 0..self.keys.len() {
            let keys = grown(&arena, &self.keys[layer], &self.keys_shape(capacity), self.along())?;
            let values = grown(&arena, &self.values[layer], &self.values_shape(capacity), self.along())?;
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
        let keys = if let Layout::Panels(panel) = self.layout { length.div_ceil(panel) } else { length };
        // Selecting a slot removes one dimension.
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

/// A tensor of `shape`, larger in dimension `along`, with the old tensor at its start.
fn grown(arena: &Arena, old: &Tensor, shape: &[i64], along: i64) -> Result<Tensor> {
    let new = arena.take(shape, (old.kind(), old.device()))?.f_zero_()?;
    new.f_narrow(along, 0, old.size()[along as usize])?.f_copy_(old)?;
    Ok(new)
}
