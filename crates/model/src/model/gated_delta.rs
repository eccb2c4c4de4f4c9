//! Gated DeltaNet (arXiv:2412.06464): projections, a causal depthwise convolution, the gated delta
//! rule, a gated RMSNorm.
//!
//! A sequence has a state of fixed size in place of keys and values: the last inputs of the
//! convolution, and the memory of the rule.

use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use super::batch::starts;
use super::config::DeltaShape;
use super::decoder::With;
use super::delta_rule::{DeltaBlocks, DeltaInputs};
use super::layers::{Linear, Maker, ParameterNode, set_merged};
use super::plain::{self, Arithmetic};
use super::recurrent::RecurrentStates;
use super::shared_prefix::PrefixDedup;
use super::{Config, Model};
use crate::native::upload;
use r1_base::error::{self, Error, Result};

/// Names of the projections.
const APART: [&str; 4] = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"];
/// Names if they are joint: per key head, queries, keys, values and output gates; β and decay.
const JOINT: [&str; 2] = ["in_proj_qkvz", "in_proj_ba"];

/// Parameters of a layer.
#[derive(Debug)]
pub(super) struct GatedDelta {
    projections: Vec<Linear>,
    /// [channels, 1, taps]
    conv: Tensor,
    /// [value heads]
    dt_bias: Tensor,
    a_log: Tensor,
    /// `[Dv]`
    norm: Tensor,
    out: Linear,
}

impl GatedDelta {
    /// Uninitialised parameters.
    pub(super) fn new(maker: &Maker, config: &Config, shape: DeltaShape) -> Result<Self> {
        let projections =
            shape.projections().into_iter().map(|outputs| maker.linear(outputs, config.hidden_size, false));
        Ok(Self {
            projections: projections.collect::<Result<_>>()?,
            conv: maker.leaf(&[shape.channels(), 1, shape.taps])?,
            dt_bias: maker.leaf(&[shape.value_heads])?,
            a_log: maker.leaf(&[shape.value_heads])?,
            norm: maker.leaf(&[shape.value_dim])?,
            out: maker.linear(config.hidden_size, shape.values(), false)?,
        })
    }

    fn names(&self) -> &'static [&'static str] {
        if self.projections.len() == JOINT.len() { &JOINT } else { &APART }
    }

    pub(super) fn walk<'a>(&'a self, f: &mut dyn FnMut(&str, ParameterNode<'a>)) {
        f("linear_attn.dt_bias", ParameterNode::Bare(&self.dt_bias));
        f("linear_attn.A_log", ParameterNode::Bare(&self.a_log));
        f("linear_attn.conv1d.weight", ParameterNode::Bare(&self.conv));
        for (name, linear) in self.names().iter().zip(&self.projections) {
            f(&format!("linear_attn.{name}"), ParameterNode::Linear(linear));
        }
        f("linear_attn.norm", ParameterNode::Norm(&self.norm));
        f("linear_attn.out_proj", ParameterNode::Linear(&self.out));
    }

    pub(super) fn linears_mut<'a>(&'a mut self, all: &mut Vec<(String, &'a mut Linear)>) {
        let names = self.names();
        let projections = names.iter().zip(&mut self.projections);
        all.extend(projections.map(|(name, linear)| (format!("linear_attn.{name}"), linear)));
        all.push(("linear_attn.out_proj".to_owned(), &mut self.out));
    }

    pub(super) fn set_merged(&mut self, on: bool) -> Result<()> {
        let all = self.projections.iter_mut().chain([&mut self.out]);
        all.into_iter().try_for_each(|linear| set_merged([linear], None, on))
    }
}

impl DeltaShape {
    /// Outputs of the projections.
    pub(super) fn projections(&self) -> Vec<usize> {
        let Self { value_heads, joint, .. } = *self;
        if joint {
            return vec![self.channels() + self.values(), 2 * value_heads];
        }
        vec![self.channels(), self.values(), value_heads, value_heads]
    }

    /// Names and outputs of the projections.
    pub(super) fn named_projections(&self) -> Vec<(&'static str, usize)> {
        let names: &[&str] = if self.joint { &JOINT } else { &APART };
        names.iter().copied().zip(self.projections()).collect()
    }
}

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
    blocks: Option<DeltaBlocks>,
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

    /// Inputs [rows, taps - 1, channels] of a layer's convolution before those of x [T, channels].
    pub(super) fn inputs(&self, layer: usize, weight: &Tensor, x: &Tensor) -> Result<Tensor> {
        match self.carried {
            Some(Carried { states, slots, .. }) => states.conv(layer, slots),
            None => Ok(x.f_new_zeros([self.rows.rows, weight.size()[2] - 1, x.size()[1]], (x.kind(), x.device()))?),
        }
    }
}

/// States of the rows of a step. They change at the end of the step, so that a step that is stopped
/// between layers changes none.
pub(super) struct Carried<'a> {
    states: &'a RecurrentStates,
    /// Slot of each row.
    slots: &'a Tensor,
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

    /// A Gated DeltaNet layer over h `[T, E]`.
    pub(super) fn gated_delta(&self, index: usize, layer: &GatedDelta, h: &Tensor, with: With<'_>) -> Result<Tensor> {
        let (Some(shape), Some(recurrence)) = (self.config.delta, with.recurrence) else {
            return Err(Error::new(error::Kind::Internal, "a layer of linear attention has no rows"));
        };
        let Recurrence { rows, carried, .. } = recurrence;
        let Some(blocks) = &rows.blocks else {
            return Err(Error::new(error::Kind::Internal, "rows of linear attention have no blocks"));
        };
        let (arithmetic, adapter) = (with.arithmetic, self.adapter_use(with));
        let wide = if self.kind == Kind::Double { Kind::Double } else { Kind::Float };
        let all = layer.projections.iter().map(|linear| linear.apply(h, adapter, arithmetic));
        let [mixed, z, beta, decay] = separated(&all.collect::<Result<Vec<_>>>()?, shape)?;
        let beta = arithmetic.sigmoid(&beta)?.f_to_kind(wide)?;
        let g = arithmetic.pointwise(&decay.f_to_kind(wide)?, |decay| {
            let rate = layer.a_log.f_to_kind(decay.kind())?.f_exp()?.f_neg()?;
            Ok(decay.f_add(&layer.dt_bias)?.f_softplus()?.f_mul(&rate)?)
        })?;
        let (mixed, beta, g) = (recurrence.spread(&mixed)?, recurrence.spread(&beta)?, recurrence.spread(&g)?);

        let [heads, key_dim, value_dim] = [shape.value_heads, shape.key_dim, shape.value_dim].map(|size| size as i64);
        let before = recurrence.inputs(index, &layer.conv, &mixed)?;
        let (mixed, kept) = convolved(rows, &layer.conv, &before, &mixed)?;
        let mixed = arithmetic.pointwise(&mixed, |x| Ok(x.f_silu()?))?.f_to_kind(self.kind)?;
        let ranked = carried.map(|carried| carried.slots.f_index_select(0, &blocks.order)).transpose()?;
        let memory = if let (Some(Carried { states, .. }), Some(ranked)) = (carried, &ranked) {
            states.memory(index, ranked)?
        } else {
            Tensor::f_zeros([blocks.order.size()[0], heads, key_dim, value_dim], (wide, self.device))?
        };
        let (out, memory) = delta_inputs(&mixed, shape, [g, beta])?.apply(blocks, memory, arithmetic)?;
        if let (Some(carried), Some(ranked)) = (carried, ranked) {
            carried.change(index, kept, Some([ranked, memory]));
        }

        let out = recurrence.take(&out)?;
        let out = plain::rms_norm(&out.f_to_kind(self.kind)?, &layer.norm, self.config.rms_norm_eps, false)?;
        let gate = arithmetic.pointwise(&z.f_view_as(&out)?.f_to_kind(wide)?, |z| Ok(z.f_silu()?))?;
        let out = out.f_mul(&gate)?.f_to_kind(self.kind)?.f_flatten(1, 2)?;
        layer.out.apply(&out, adapter, arithmetic)
    }
}

/// Inputs of the convolution [T, channels], output gates [T, values], inputs of β and of the decay
/// [T, value heads].
fn separated(projections: &[Tensor], shape: DeltaShape) -> Result<[Tensor; 4]> {
    let unexpected = || Error::new(error::Kind::Internal, "projections of linear attention are not separated");
    let [both, rates] = projections else {
        let all: Vec<Tensor> = projections.iter().map(Tensor::shallow_clone).collect();
        return all.try_into().map_err(|_| unexpected());
    };
    let DeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = shape;
    let group = value_heads / key_heads;
    let split = |x: &Tensor, sizes: &[usize]| -> Result<Vec<Tensor>> {
        let sizes: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
        let heads = x.f_view([x.size()[0], key_heads as i64, -1])?;
        heads.f_split_with_sizes(&sizes[..], 2)?.iter().map(|part| Ok(part.f_flatten(1, 2)?)).collect()
    };
    let values = group * value_dim;
    let (parts, rates) = (split(both, &[key_dim, key_dim, values, values])?, split(rates, &[group, group])?);
    let ([q, k, v, z], [beta, decay]) = (parts.as_slice(), rates.as_slice()) else { return Err(unexpected()) };
    let mixed = Tensor::f_cat(&[q, k, v], 1)?;
    Ok([mixed, z.shallow_clone(), beta.shallow_clone(), decay.shallow_clone()])
}

/// The convolution over the rows in at least f32, and the inputs [rows, taps - 1, channels] that
/// the next tokens need; `before` has the inputs of the tokens before.
pub(super) fn convolved(
    rows: &RecurrentRows,
    weight: &Tensor,
    before: &Tensor,
    x: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let wide = if x.kind() == Kind::Double { Kind::Double } else { Kind::Float };
    let (channels, taps) = (x.size()[1], weight.size()[2]);
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

/// Inputs of the rule from the outputs of the convolution [T, channels].
fn delta_inputs(mixed: &Tensor, shape: DeltaShape, [g, beta]: [Tensor; 2]) -> Result<DeltaInputs> {
    let wide = g.kind();
    let (keys, group) = ((shape.key_heads * shape.key_dim) as i64, (shape.value_heads / shape.key_heads) as i64);
    let part = |first: i64, size: i64, dim: usize| -> Result<Tensor> {
        let part = mixed.f_narrow(1, first, size)?.f_to_kind(wide)?;
        Ok(part.f_view([mixed.size()[0], -1, dim as i64])?)
    };
    // Each key head serves consecutive value heads.
    let repeated = |first: i64| -> Result<Tensor> {
        let heads = part(first, keys, shape.key_dim)?;
        if group == 1 { Ok(heads) } else { Ok(heads.f_repeat_interleave_self_int(group, 1, None)?) }
    };
    let v = part(2 * keys, shape.values() as i64, shape.value_dim)?;
    Ok(DeltaInputs { q: repeated(0)?, k: repeated(keys)?, v, g, beta })
}
