//! States of linear attention and short convolutions in the cache.
//!
//! Unlike keys and values, a state exists for one number of tokens only. Each slot therefore has
//! two: the state after its last token, and a snapshot, which the engine takes before the last
//! token of a prompt. A sequence goes on from either, or from its beginning.

use tch::{Device, Kind, Tensor};

use super::Config;
use super::transfer::zeros;
use r1_base::error::{self, Error, Result};

/// States of all slots: rows of the slots, then rows of their snapshots.
#[derive(Debug)]
pub(super) struct RecurrentStates {
    /// For each layer: [rows, taps - 1, channels] in the type of the cache, and with linear
    /// attention [rows, value heads, Dk, Dv] in at least f32; empty for attention.
    layers: Vec<Vec<Tensor>>,
    /// Tokens of the state of each row; 0 for none.
    lengths: Vec<usize>,
    /// Number of slots, spare slots included.
    slots: usize,
}

impl RecurrentStates {
    /// Empty states, if the model has any.
    pub(super) fn new(config: &Config, slots: usize, kind: Kind, device: Device) -> Result<Option<Self>> {
        let Some((taps, channels)) = config.convolution() else { return Ok(None) };
        let wide = if kind == Kind::Double { kind } else { Kind::Float };
        let rows = 2 * slots;
        let layer = |index: usize| -> Result<Vec<Tensor>> {
            if !config.layer(index).linear {
                return Ok(Vec::new());
            }
            let mut all = vec![zeros(&[rows as i64, taps as i64 - 1, channels as i64], kind, device)?];
            if let Some(shape) = config.delta {
                let memory = [rows, shape.value_heads, shape.key_dim, shape.value_dim].map(|n| n as i64);
                all.push(zeros(&memory, wide, device)?);
            }
            Ok(all)
        };
        let layers = (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?;
        Ok(Some(Self { layers, lengths: vec![0; rows], slots }))
    }

    /// Memory of the two states of a slot, bytes.
    pub(super) fn slot_bytes(config: &Config, kind: Kind) -> u64 {
        let Some((taps, channels)) = config.convolution() else { return 0 };
        let wide = if kind == Kind::Double { 8 } else { 4 };
        let conv = (taps - 1) * channels * kind.elt_size_in_bytes();
        let memory = config.delta.map_or(0, |shape| wide * shape.key_dim * shape.values());
        let layers = (0..config.num_hidden_layers).filter(|&index| config.layer(index).linear).count();
        2 * layers as u64 * (conv + memory) as u64
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flatten()
    }

    /// Inputs of the convolution of slots `[N]`.
    pub(super) fn conv(&self, layer: usize, slots: &Tensor) -> Result<Tensor> {
        Ok(self.state(layer, 0)?.f_index_select(0, slots)?)
    }

    /// Memories of slots `[N]`.
    pub(super) fn memory(&self, layer: usize, slots: &Tensor) -> Result<Tensor> {
        Ok(self.state(layer, 1)?.f_index_select(0, slots)?)
    }

    /// Writes the states of a layer; each comes after its slots.
    pub(super) fn write(&self, layer: usize, conv: [&Tensor; 2], memory: Option<[&Tensor; 2]>) -> Result<()> {
        for (index, [slots, new]) in [conv].into_iter().chain(memory).enumerate() {
            let _ = self.state(layer, index)?.shallow_clone().f_index_copy_(0, slots, new)?;
        }
        Ok(())
    }

    fn state(&self, layer: usize, index: usize) -> Result<&Tensor> {
        let state = self.layers.get(layer).and_then(|all| all.get(index));
        state.ok_or_else(|| Error::new(error::Kind::Internal, format!("layer {layer} has no state in the cache")))
    }

    /// The largest number of tokens, up to `limit`, that a slot can go on from.
    pub(super) fn reachable(&self, slot: usize, limit: usize) -> usize {
        let both = [slot, self.slots + slot].map(|row| self.lengths.get(row).copied().unwrap_or(0));
        both.into_iter().filter(|&length| length <= limit).max().unwrap_or(0)
    }

    /// Makes the state after `start` tokens the current one of a slot.
    pub(super) fn rewind(&mut self, slot: usize, start: usize) -> Result<()> {
        let snapshot = self.slots + slot;
        if start == 0 {
            for tensor in self.tensors() {
                let _ = tensor.f_select(0, slot as i64)?.f_zero_()?;
            }
            self.lengths[slot] = 0;
        } else if self.lengths[slot] != start {
            self.copy_row(snapshot, slot, start)?;
        }
        if self.lengths[snapshot] > start {
            self.lengths[snapshot] = 0;
        }
        Ok(())
    }

    /// Records that the current state of a slot is the one after `length` tokens.
    pub(super) fn advance(&mut self, slot: usize, length: usize) {
        self.lengths[slot] = length;
    }

    /// Takes a snapshot of a slot.
    pub(super) fn snapshot(&mut self, slot: usize) -> Result<()> {
        self.copy_row(slot, self.slots + slot, self.lengths[slot])
    }

    /// Copies the state of slot `from` after `length` tokens to the state and the snapshot of slot
    /// `to`.
    pub(super) fn copy(&mut self, from: usize, to: usize, length: usize) -> Result<()> {
        let row = if self.lengths[from] == length { from } else { self.slots + from };
        self.copy_row(row, to, length)?;
        self.snapshot(to)
    }

    fn copy_row(&mut self, from: usize, to: usize, length: usize) -> Result<()> {
        if self.lengths[from] != length {
            let why = format!("the cache has no state after {length} tokens of slot {}", to % self.slots);
            return Err(Error::new(error::Kind::Internal, why));
        }
        for tensor in self.tensors() {
            tensor.f_select(0, to as i64)?.f_copy_(&tensor.f_select(0, from as i64)?)?;
        }
        self.lengths[to] = length;
        Ok(())
    }
}
