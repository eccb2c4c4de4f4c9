//! Gated DeltaNet (arXiv:2412.06464): projections, a causal depthwise convolution, the gated delta
//! rule, a gated RMSNorm.
//!
//! A sequence has a state of fixed size in place of keys and values: the last inputs of the
//! convolution, and the memory of the rule.

use tch::{Kind, Tensor};

use super::config::DeltaShape;
use super::decoder::With;
use super::delta_rule::DeltaInputs;
use super::layers::{Linear, Maker, ParameterNode, set_merged};
use super::plain;
use super::recurrence::{Carried, Recurrence};
use super::{Config, Model};
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

impl Model {
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
        let (mixed, kept) = recurrence.convolved(index, &layer.conv, &mixed)?;
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
