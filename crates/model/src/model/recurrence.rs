//! Rows of tokens for recurrent layers (Gated DeltaNets, short convolutions), their causal
//! depthwise convolution, and the states of the rows in generation.

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use super::Model;
use super::batch::starts;
use super::delta_rule::DeltaBlocks;
use super::plain::Arithmetic;
use super::recurrent::RecurrentStates;
use super::shared_prefix::PrefixDedup;
use crate::native::upload;
use r1_base::error::Result;

/// Layout of rows of tokens.
#[derive(Debug)]
pub(super) struct RecurrentRows {
    /// Number of rows.
    rows: i64,
    /// Rows with the inputs of the convolution that precede them: places in the states of all rows,
    /// followed by all tokens.
    joined: Tensor,
    /// `[T]`: the first of the inputs in `joined` that the convolution combines for each token.
    first: Tensor,
    /// [rows * (taps - 1)]: the inputs in `joined` that the next tokens need.
    kept: Tensor,
    /// With Gated DeltaNet layers.
    pub blocks: Option<DeltaBlocks>,
}

impl RecurrentRows {
    /// Rows of the given lengths, and a convolution of `taps` tokens. `rule` is for Gated DeltaNet
    /// layers: whether their rule is computed token by token.
    pub(super) fn new(lengths: &[i64], taps: usize, rule: Option<bool>, device: Device) -> Result<Self> {
        let (rows, before) = (lengths.len() as i64, taps as i64 - 1);
        let (mut joined, mut first, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for ((row, &length), start) in (0..).zip(lengths).zip(starts(lengths)) {
            let begin = joined.len() as i64;
            joined.extend(row * before..(row + 1) * before);
            joined.extend((start..start + length).map(|token| rows * before + token));
            first.extend(begin..begin + length);
            kept.extend(begin + length..begin + length + before);
        }
        let uploaded = |list: &[i64]| -> Result<Tensor> { upload(&Tensor::f_from_slice(list)?, device) };
        Ok(Self {
            rows,
            joined: uploaded(&joined)?,
            first: uploaded(&first)?,
            kept: uploaded(&kept)?,
            blocks: rule.map(|single| DeltaBlocks::new(lengths, single, device)).transpose()?,
        })
    }
}

/// What a Gated DeltaNet or a short convolution is computed with.
#[derive(Clone, Copy)]
pub(super) struct Recurrence<'a> {
    pub rows: &'a RecurrentRows,
    /// Shared prefixes of the rows.
    pub distinct: Option<&'a PrefixDedup>,
    /// In generation.
    pub carried: Option<&'a Carried<'a>>,
}

impl Recurrence<'_> {
    /// Rows of all tokens from rows of distinct ones.
    pub(super) fn spread(&self, x: &Tensor) -> Result<Tensor> {
        self.distinct.map_or_else(|| Ok(x.shallow_clone()), |distinct| distinct.spread(x))
    }

    /// Rows of distinct tokens from rows of all.
    pub(super) fn take(&self, x: &Tensor) -> Result<Tensor> {
        self.distinct.map_or_else(|| Ok(x.shallow_clone()), |distinct| distinct.take(x))
    }

    /// The convolution of a layer over x [T, channels] in at least f32, and the inputs
    /// [rows, taps - 1, channels] that the next tokens need.
    pub(super) fn convolved(&self, layer: usize, weight: &Tensor, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let wide = if x.kind() == Kind::Double { Kind::Double } else { Kind::Float };
        let (rows, channels, taps) = (self.rows, x.size()[1], weight.size()[2]);
        let before = match self.carried {
            Some(Carried { states, slots, .. }) => states.conv(layer, slots)?,
            None => x.f_new_zeros([rows.rows, taps - 1, channels], (x.kind(), x.device()))?,
        };
        let joined = Tensor::f_cat(&[&before.f_view([-1, channels])?, x], 0)?.f_index_select(0, &rows.joined)?;
        let (all, weight) = (joined.f_to_kind(wide)?, weight.f_squeeze_dim(1)?.f_to_kind(wide)?);
        let length = all.size()[0] - (taps - 1);
        let mut sum = all.f_narrow(0, 0, length)?.f_mul(&weight.f_select(1, 0)?)?;
        for tap in 1..taps {
            sum = sum.f_add(&all.f_narrow(0, tap, length)?.f_mul(&weight.f_select(1, tap)?)?)?;
        }
        let kept = joined.f_index_select(0, &rows.kept)?.f_view([rows.rows, taps - 1, channels])?;
        Ok((sum.f_index_select(0, &rows.first)?, kept))
    }
}

/// States of the rows of a step. They change at the end of the step, so that a step that is stopped
/// between layers changes none.
pub(super) struct Carried<'a> {
    pub states: &'a RecurrentStates,
    /// Slot of each row.
    pub slots: &'a Tensor,
    changes: RefCell<Vec<NewState>>,
}

/// The new state of a layer.
struct NewState {
    layer: usize,
    /// Inputs of the convolution.
    conv: Tensor,
    /// With linear attention, slots and memories.
    memory: Option<[Tensor; 2]>,
}

impl<'a> Carried<'a> {
    pub(super) fn new(states: &'a RecurrentStates, slots: &'a Tensor) -> Self {
        Self { states, slots, changes: RefCell::default() }
    }

    /// Adds the new states of a layer: inputs of the convolution, slots and memories.
    pub(super) fn change(&self, layer: usize, conv: Tensor, memory: Option<[Tensor; 2]>) {
        self.changes.borrow_mut().push(NewState { layer, conv, memory });
    }

    /// Writes the new states.
    pub(super) fn commit(self) -> Result<()> {
        for NewState { layer, conv, memory } in self.changes.into_inner() {
            self.states.write(layer, [self.slots, &conv], memory.as_ref().map(|[slots, new]| [slots, new]))?;
        }
        Ok(())
    }
}

impl Model {
    /// Rows of a batch or a step for recurrent layers, if the model has any.
    pub(super) fn recurrent_rows(&self, lengths: &[i64], arithmetic: Arithmetic) -> Result<Option<RecurrentRows>> {
        let rule = self.config.delta.map(|_| arithmetic == Arithmetic::Rowwise);
        let convolution = self.config.convolution();
        convolution.map(|(taps, _)| RecurrentRows::new(lengths, taps, rule, self.device)).transpose()
    }
}
