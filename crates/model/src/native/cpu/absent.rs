//! Replaces the CPU kernels in a build without the feature `cpu-kernels`: callers use libtorch's
//! operations.

use std::ffi::c_void;

use tch::Tensor;

use super::NetworkShape;
use r1_base::error::{Error, Kind, Result};

/// A network of the kernels, which can't be created.
#[derive(Debug)]
pub(crate) enum Network {}

impl Network {
    pub(crate) fn new(_: &NetworkShape, _: &Tensor, _: &[Option<Tensor>]) -> Result<Self> {
        Err(absent())
    }

    pub(crate) fn forward(&self, _: &Tensor, _: &Tensor, _: &[i64], _: bool) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn step<'a>(
        &self,
        _: &[Tensor],
        _: &[Tensor],
        _: usize,
        _: impl Iterator<Item = (usize, usize, &'a [u32])>,
        _: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        match *self {}
    }

    pub(super) fn pointer(&self) -> *mut c_void {
        match *self {}
    }
}

/// Unused without kernels.
pub(crate) fn by_layer(_: &mut dyn FnMut(usize) -> Result<()>, backward: impl FnOnce() -> Result<()>) -> Result<()> {
    backward()
}

fn absent() -> Error {
    Error::new(Kind::Internal, "this build has no CPU kernels")
}

/// Always `off`.
pub fn kernels() -> &'static str {
    "off"
}

/// Unused without kernels.
pub(crate) fn panel() -> usize {
    1
}

/// Unused without kernels.
pub(crate) fn linear_rows(_: &Tensor, _: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
    Err(absent())
}

/// Unused without kernels.
pub(crate) fn gated_rows(_: &Tensor, _: &Tensor, _: bool) -> Result<Tensor> {
    Err(absent())
}

/// Unused without kernels.
pub(crate) fn attend_rows(
    _: [&Tensor; 3],
    _: &Tensor,
    _: &Tensor,
    _: (f64, Option<usize>),
    _: Option<&Tensor>,
) -> Result<Tensor> {
    Err(absent())
}

/// Replaces logits with softmax(logits * scale); all NaN if a logit is NaN or +infinite.
pub fn softmax(row: &mut [f32], scale: f32) {
    let fine = row.iter().all(|logit| *logit < f32::INFINITY);
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !fine || largest == f32::NEG_INFINITY {
        row.fill(f32::NAN);
        return;
    }
    let mut sum = 0.0_f64;
    for logit in row.iter_mut() {
        *logit = ((*logit - largest) * scale).exp();
        sum += f64::from(*logit);
    }
    let scale = (1.0 / sum) as f32;
    row.iter_mut().for_each(|share| *share *= scale);
}
