//! Gated short convolutions (LFM2, arXiv:2511.23404): of three projections of a token, the first
//! gates the input of a causal depthwise convolution, and the second its output.
//!
//! The state of a sequence is the last inputs of the convolution.

use tch::Tensor;

use super::decoder::With;
use super::layers::{Linear, Maker, ParameterNode, set_merged};
use super::{Config, Model};
use r1_base::error::{self, Error, Result};

/// Parameters of a layer.
#[derive(Debug)]
pub(super) struct ShortConv {
    /// [3 * E, E]: gate of the input, gate of the output, input.
    projections: Linear,
    /// [E, 1, taps]
    conv: Tensor,
    out: Linear,
}

impl ShortConv {
    /// Uninitialised parameters.
    pub(super) fn new(maker: &Maker, config: &Config, taps: usize) -> Result<Self> {
        let hidden = config.hidden_size;
        Ok(Self {
            projections: maker.linear(3 * hidden, hidden, false)?,
            conv: maker.leaf(&[hidden, 1, taps])?,
            out: maker.linear(hidden, hidden, false)?,
        })
    }

    pub(super) fn walk<'a>(&'a self, f: &mut dyn FnMut(&str, ParameterNode<'a>)) {
        f("conv.conv.weight", ParameterNode::Bare(&self.conv));
        f("conv.in_proj", ParameterNode::Linear(&self.projections));
        f("conv.out_proj", ParameterNode::Linear(&self.out));
    }

    pub(super) fn linears_mut<'a>(&'a mut self, all: &mut Vec<(String, &'a mut Linear)>) {
        all.push(("conv.in_proj".to_owned(), &mut self.projections));
        all.push(("conv.out_proj".to_owned(), &mut self.out));
    }

    pub(super) fn set_merged(&mut self, on: bool) -> Result<()> {
        [&mut self.projections, &mut self.out].into_iter().try_for_each(|linear| set_merged([linear], None, on))
    }
}

impl Model {
    /// A layer of short convolutions over h `[T, E]`.
    pub(super) fn short_conv(&self, index: usize, layer: &ShortConv, h: &Tensor, with: With<'_>) -> Result<Tensor> {
        let internal = |message: &str| Error::new(error::Kind::Internal, message);
        let recurrence = with.recurrence.ok_or_else(|| internal("a layer of convolutions has no rows"))?;
        let (arithmetic, adapter) = (with.arithmetic, self.adapter_use(with));
        let parts = layer.projections.apply(h, adapter, arithmetic)?.f_chunk(3, 1)?;
        let [before, after, x] = parts.as_slice() else { return Err(internal("projections are not separated")) };
        let x = recurrence.spread(&before.f_mul(x)?)?;
        let (mixed, kept) = recurrence.convolved(index, &layer.conv, &x)?;
        if let Some(carried) = recurrence.carried {
            carried.change(index, kept, None);
        }
        let mixed = recurrence.take(&mixed.f_to_kind(self.kind)?)?;
        layer.out.apply(&after.f_mul(&mixed)?, adapter, arithmetic)
    }
}
