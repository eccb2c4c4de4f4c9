//! Key-value cache of generation, one slot per sequence.

use std::cell::RefCell;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::decode_ahead::Prepared;
use super::images::CachedImages;
use super::recurrent::RecurrentStates;
use super::transfer::zeros;
use super::{Config, Span};
use crate::native::Arena;
use r1_base::error;
use r1_base::error::{Error, Result};

/// Keys and values of every layer for a number of slots; a slot holds one sequence of up to
/// `capacity` tokens.
///
/// The owner tracks the tokens of each slot: a position is valid after a span wrote it.
#[derive(Debug)]
pub struct KvCache {
    /// One tensor per layer, in the format of `layout`; empty for a layer of linear attention.
    pub(super) keys: Vec<Tensor>,
    pub(super) values: Vec<Tensor>,
    /// States of the layers of linear attention.
    pub(super) states: Option<RecurrentStates>,
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
    pub(super) images: RefCell<CachedImages>,
    /// Addresses of the tensors before their memory was released, while it is.
    released: Option<Vec<usize>>,
    options: (Kind, Device),
    slots: usize,
    capacity: usize,
    pub(super) layout: Layout,
    config: Config,
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
        let mut new = Self {
            keys: Vec::new(),
            values: Vec::new(),
            states: None,
            next: zeros(&[2, slots as i64 + 1], Kind::Int64, device)?,
            prepared: Vec::new(),
            recording: Duration::ZERO,
            decoding: Decoding::None,
            routes: None,
            images: RefCell::default(),
            released: None,
            options: (kind, device),
            slots,
            capacity,
            layout,
            config: config.clone(),
        };
        new.allocate()?;
        Ok(new)
    }

    fn allocate(&mut self) -> Result<()> {
        let arena = Arena::new();
        let (kind, device) = self.options;
        for index in 0..self.config.num_hidden_layers {
            if self.config.layer(index).linear {
                self.keys.push(zeros(&[0], kind, device)?);
                self.values.push(zeros(&[0], kind, device)?);
                continue;
            }
            self.keys.push(arena.take(&self.keys_shape(self.capacity), self.options)?.f_zero_()?);
            self.values.push(arena.take(&self.values_shape(self.capacity), self.options)?.f_zero_()?);
        }
        let spare = if let Layout::Tokens { spare } = self.layout { spare } else { 0 };
        self.states = RecurrentStates::new(&self.config, self.slots + spare, kind, device)?;
        Ok(())
    }

    /// Frees the memory of keys and values, with their content. [`restore`](Self::restore)
    /// allocates it again. Recorded graphs stay, and are used again if the addresses are the same.
    pub fn release(&mut self) {
        if self.released.is_none() {
            self.released = Some(self.addresses());
            (self.keys, self.values, self.states) = (Vec::new(), Vec::new(), None);
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
        if let Err(error) = self.allocate() {
            (self.keys, self.values, self.states) = (Vec::new(), Vec::new(), None);
            self.released = Some(before);
            return Err(error);
        }
        if self.addresses() != before {
            self.prepared.clear();
            self.recording = Duration::ZERO;
        }
        Ok(())
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let states = self.states.iter().flat_map(RecurrentStates::tensors);
        self.keys.iter().chain(&self.values).chain(states)
    }

    fn addresses(&self) -> Vec<usize> {
        self.tensors().map(|tensor| tensor.data_ptr() as usize).collect()
    }

    fn keys_shape(&self, capacity: usize) -> Vec<i64> {
        let Config { num_key_value_heads: heads, head_dim, .. } = self.config;
        let shape = match self.layout {
            Layout::Panels(panel) => vec![self.slots, heads, capacity / panel, head_dim, panel],
            Layout::Tokens { spare } => vec![self.slots + spare, capacity, heads, head_dim],
        };
        shape.into_iter().map(|size| size as i64).collect()
    }

    fn values_shape(&self, capacity: usize) -> Vec<i64> {
        match self.layout {
            Layout::Panels(_) => {
                let Config { num_key_value_heads: heads, head_dim, .. } = self.config;
                [self.slots, heads, capacity, head_dim].map(|size| size as i64).to_vec()
            }
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

    /// Memory of the recurrent states of a slot, bytes.
    pub fn state_bytes(config: &Config, kind: Kind) -> u64 {
        RecurrentStates::slot_bytes(config, kind)
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
        self.tensors().map(|tensor| tensor.numel() * tensor.kind().elt_size_in_bytes()).sum()
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
            if self.config.layer(layer).linear {
                continue;
            }
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
            for tensor in tensors.iter().filter(|tensor| tensor.numel() > 0) {
                let source = tensor.f_select(0, from as i64)?.f_narrow(along, 0, count as i64)?;
                tensor.f_select(0, to as i64)?.f_narrow(along, 0, count as i64)?.f_copy_(&source)?;
            }
        }
        self.images.get_mut().copy(from, to, length);
        self.states.as_mut().map_or(Ok(()), |states| states.copy(from, to, length))
    }

    /// Drops what depends on the weights beside the tokens of the slots: embeddings of images.
    pub fn forget_images(&mut self) {
        self.images.get_mut().forget();
    }

    /// The largest number of the first `limit` tokens of a slot that a sequence can go on from:
    /// all, unless the model has recurrent states.
    pub fn reachable(&self, slot: usize, limit: usize) -> usize {
        self.states.as_ref().map_or(limit, |states| states.reachable(slot, limit))
    }

    /// Keeps the recurrent state of a slot after its last token, to which the slot can return.
    pub fn snapshot(&mut self, slot: usize) -> Result<()> {
        let _guard = tch::no_grad_guard();
        self.states.as_mut().map_or(Ok(()), |states| states.snapshot(slot))
    }

    /// Makes the recurrent states before the spans the current ones.
    pub(super) fn rewind(&mut self, items: &[Span<'_>]) -> Result<()> {
        let Some(states) = &mut self.states else { return Ok(()) };
        items.iter().try_for_each(|span| states.rewind(span.slot, span.start))
    }

    /// Records that the spans are computed.
    pub(super) fn advance(&mut self, items: &[Span<'_>]) {
        let Some(states) = &mut self.states else { return };
        for span in items {
            states.advance(span.slot, span.start + span.ids.len());
        }
    }
}

/// A tensor of `shape`, larger in dimension `along`, with the old tensor at its start.
fn grown(arena: &Arena, old: &Tensor, shape: &[i64], along: i64) -> Result<Tensor> {
    let new = arena.take(shape, (old.kind(), old.device()))?.f_zero_()?;
    new.f_narrow(along, 0, old.size()[along as usize])?.f_copy_(old)?;
    Ok(new)
}
