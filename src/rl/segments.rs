//! Sums and means over the tokens of a sequence, for every sequence of a batch at once.

use tch::{Kind, Tensor};

use crate::error::Result;

/// N tokens in S sequences.
#[derive(Debug)]
pub(super) struct Segments {
    index: Tensor,
    count: i64,
}

impl Segments {
    /// `index` `[N]` i64: the number of each token's sequence, from 0 and below `count`; numbers
    /// without a token are allowed.
    pub(super) fn new(index: &Tensor, count: i64) -> Self {
        Self { index: index.shallow_clone(), count }
    }

    /// As [`new`](Self::new), with the smallest count, which waits for the device.
    pub(super) fn counted(index: &Tensor) -> Result<Self> {
        let count = if index.numel() == 0 { 0 } else { i64::try_from(index.f_max()?)? + 1 };
        Ok(Self::new(index, count))
    }

    /// `[N]` -> `[S]`.
    pub(super) fn sum(&self, values: &Tensor) -> Result<Tensor> {
        let zeros = Tensor::f_zeros([self.count], (values.kind(), values.device()))?;
        Ok(zeros.f_index_add(0, &self.index, values)?)
    }

    /// `[N]` -> `[S]`; 0 for a sequence without tokens.
    pub(super) fn mean(&self, values: &Tensor) -> Result<Tensor> {
        let lengths = self.sum(&values.f_detach()?.f_ones_like()?)?.f_clamp_min(1.0)?;
        Ok(self.sum(values)?.f_div(&lengths)?)
    }

    /// `[S]` -> `[N]`: the number of its sequence for every token.
    pub(super) fn spread(&self, values: &Tensor) -> Result<Tensor> {
        Ok(values.f_index_select(0, &self.index)?)
    }
}

/// 1 where `condition` is true, else 0, in the type of `like`.
pub(super) fn ones_where(condition: &Tensor, like: &Tensor) -> Result<Tensor> {
    Ok(condition.f_to_kind(like.kind())?)
}

/// Counts, in f64.
pub(super) fn count(condition: &Tensor) -> Result<Tensor> {
    Ok(condition.f_sum(Kind::Double)?)
}
