//! Deduplication of shared prefixes of rows, with libtorch operations (the CPU kernels have their
//! own).
//!
//! The responses of a group share their prompt, and a branch shares the steps before it. The hidden
//! state of a token depends only on the previous tokens of its row, so everything but attention
//! (embedding, norms, projections, MLPs, experts, adapters) is computed for distinct tokens.
//! Attention processes whole rows; the first copy of a token gives the result, and gradients of its
//! keys and values are summed in at least f32.

use std::collections::HashMap;

use tch::{Kind, Tensor};

use super::{OnHost, Packed};
use crate::native::upload;
use r1_base::error::Result;

/// Minimum fraction of saved tokens, to pay for the gathers.
const WORTH: f64 = 0.25;

/// A token of the prefix tree: previous token, id, position, experts.
type PrefixNode<'a> = (Option<usize>, i64, i64, &'a [i64]);

/// The distinct tokens of a batch.
#[derive(Debug)]
pub(super) struct PrefixDedup {
    /// `[D]`: position in the batch of the first copy of each distinct token.
    representative: Tensor,
    /// The same on the host.
    pub(super) first_copies: Vec<i64>,
    /// `[T]`: the distinct token that each token of the batch is a copy of.
    index: Tensor,
}

impl PrefixDedup {
    /// `None` if rows share too few tokens.
    pub(super) fn find(batch: &Packed) -> Result<Option<Self>> {
        if batch.lengths.len() < 2 {
            return Ok(None);
        }
        let host = batch.host()?;
        let OnHost { ids, positions, routing: experts } = &*host;
        let width = experts.len() / ids.len().max(1);
        // Prefix tree: tokens are equal if position, previous tokens and routing are equal.
        let mut tree: HashMap<PrefixNode<'_>, usize> = HashMap::with_capacity(ids.len());
        let (mut first, mut of) = (Vec::new(), Vec::with_capacity(ids.len()));
        for &length in &batch.lengths {
            let mut before = None;
            for _ in 0..length {
                let at = of.len();
                let (Some(&id), Some(&position)) = (ids.get(at), positions.get(at)) else { return Ok(None) };
                let routed = experts.get(at * width..(at + 1) * width).unwrap_or_default();
                let node = *tree.entry((before, id, position, routed)).or_insert_with(|| {
                    first.push(at as i64);
                    first.len() - 1
                });
                of.push(node as i64);
                before = Some(node);
            }
        }
        if of.len() != ids.len() || first.len() as f64 > (1.0 - WORTH) * ids.len() as f64 {
            return Ok(None);
        }
        let uploaded = |list: &[i64]| -> Result<Tensor> { upload(&Tensor::f_from_slice(list)?, batch.ids.device()) };
        Ok(Some(Self { representative: uploaded(&first)?, index: uploaded(&of)?, first_copies: first }))
    }

    /// `[T, …]` to `[D, …]`: selects the first copies.
    pub(super) fn take(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_index_select(0, &self.representative)?)
    }

    /// `[D, …]` to `[T, …]`: expands to all copies. Backward sums over copies, in f32 for narrower
    /// types.
    pub(super) fn spread(&self, x: &Tensor) -> Result<Tensor> {
        let narrow = matches!(x.kind(), Kind::BFloat16 | Kind::Half);
        if narrow && x.requires_grad() {
            return Ok(x.f_to_kind(Kind::Float)?.f_index_select(0, &self.index)?.f_to_kind(x.kind())?);
        }
        Ok(x.f_index_select(0, &self.index)?)
    }
}
