//! Inputs of a model: packed rows for training, spans of sequences for generation.

use std::borrow::Cow;

use tch::Tensor;

use crate::native::upload;
use r1_base::error::Result;

/// Packed rows without padding, the input of a model. Rows do not attend to each other.
#[derive(Debug)]
pub struct Packed {
    /// `[T]` i64 token ids.
    pub ids: Tensor,
    /// `[T]` i64 rotary positions; 0, 1, 2, … in every row for ordinary rows.
    pub positions: Tensor,
    /// Tokens of each row, in order; they sum to T.
    pub lengths: Vec<i64>,
    /// `[T, width]` i64: experts of each token for all sparse layers in order; -1 uses the router.
    /// `None` uses the router for all tokens.
    pub routing: Option<Tensor>,
    /// The same numbers on the host; without them, the host waits for the device to read them.
    pub on_host: Option<OnHost>,
}

/// Tokens of packed rows on the host.
#[derive(Clone, Debug, Default)]
pub struct OnHost {
    /// `[T]`.
    pub ids: Vec<i64>,
    /// `[T]`.
    pub positions: Vec<i64>,
    /// `[T * width]`, or empty.
    pub routing: Vec<i64>,
}

impl Packed {
    /// Its tokens on the host.
    pub(super) fn host(&self) -> Result<Cow<'_, OnHost>> {
        let routed = self.routing.as_ref().map_or(0, Tensor::numel);
        if let Some(on_host) = self.on_host.as_ref().filter(|on_host| on_host.routing.len() == routed) {
            return Ok(Cow::Borrowed(on_host));
        }
        let list = |tensor: &Tensor| -> Result<Vec<i64>> { Ok(Vec::<i64>::try_from(tensor)?) };
        let routing = self.routing.as_ref().map(|routing| list(&routing.f_flatten(0, 1)?)).transpose()?;
        Ok(Cow::Owned(OnHost {
            ids: list(&self.ids)?,
            positions: list(&self.positions)?,
            routing: routing.unwrap_or_default(),
        }))
    }

    /// Packs rows of ids, with positions from 0 in each row.
    pub fn from_rows<R: AsRef<[u32]>>(rows: &[R], device: tch::Device) -> Result<Self> {
        let ids: Vec<i64> = rows.iter().flat_map(|row| row.as_ref().iter().map(|&id| i64::from(id))).collect();
        let positions: Vec<i64> = rows.iter().flat_map(|row| 0..row.as_ref().len() as i64).collect();
        Ok(Self {
            ids: upload(&Tensor::f_from_slice(&ids)?, device)?,
            positions: upload(&Tensor::f_from_slice(&positions)?, device)?,
            lengths: rows.iter().map(|row| row.as_ref().len() as i64).collect(),
            routing: None,
            on_host: Some(OnHost { ids, positions, routing: Vec::new() }),
        })
    }
}

/// A chunk of one sequence: `ids` at positions `start..` of the cache slot. One id is a decode
/// step, several are a prefill.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Cache slot of the sequence; at most one span per slot and call.
    pub slot: usize,
    /// Tokens of the sequence already in the slot.
    pub start: usize,
    /// At least one id.
    pub ids: &'a [u32],
}

/// First token of each row.
pub(super) fn starts(lengths: &[i64]) -> Vec<i64> {
    let mut end = 0;
    let begin = |length: &i64| {
        end += length;
        end - length
    };
    lengths.iter().map(begin).collect()
}
