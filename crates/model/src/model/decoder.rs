//! The whole network in plain libtorch operations: every family, device and type.

use tch::Tensor;

use super::config::Activation;
use super::expert_routing::Routes;
use super::images::{ImageTokens, by_axis};
use super::layers::{AdapterUse, Block, Layer, Linear, Mlp};
use super::mixers::{Attention, Mixer};
use super::plain::{self, Arithmetic, Scores};
use super::recurrence::{Recurrence, RecurrentRows};
use super::shared_prefix::PrefixDedup;
use super::varlen::Varlen;
use super::{Model, Packed};
use crate::native::{self, Cached};
use r1_base::error::{self, Error, Result};

/// Cosines and sines `[T, D]` of every rope.
pub(super) type Angles = Vec<(Tensor, Tensor)>;

/// The residual stream `[T, E]` before a layer: x plus the output of the last block, which the next
/// norm adds.
#[derive(Debug)]
pub(super) struct Residual {
    pub x: Tensor,
    pub delta: Option<Tensor>,
}

impl Residual {
    pub(super) fn new(x: Tensor) -> Self {
        Self { x, delta: None }
    }

    /// x with the last block's output.
    pub(super) fn sum(&self) -> Result<Tensor> {
        self.delta.as_ref().map_or_else(|| Ok(self.x.shallow_clone()), |delta| Ok(self.x.f_add(delta)?))
    }
}

/// What a layer is computed with.
#[derive(Clone, Copy)]
pub(super) struct With<'a> {
    pub arithmetic: Arithmetic,
    pub routes: &'a Routes<'a>,
    /// Where keys and values go, in generation.
    pub cached: Option<Cached<'a>>,
    /// Rows and states of recurrent layers.
    pub recurrence: Option<Recurrence<'a>>,
}

/// Rows of one batch: distinct tokens, and their layout for attention.
#[derive(Debug)]
pub(super) struct BatchRows {
    ends: Ends,
    /// Deduplication of shared prefixes.
    distinct: Option<PrefixDedup>,
    /// Rows for recurrent layers.
    recurrent: Option<RecurrentRows>,
    /// Experts of the distinct tokens, in the form of [`Packed::routing`].
    routing: Option<Tensor>,
    /// The images among the distinct tokens.
    images: Option<ImageTokens>,
}

#[derive(Debug)]
enum Ends {
    /// Row lengths, for padded attention.
    Padded(Vec<i64>),
    EndToEnd(Varlen),
}

impl BatchRows {
    /// Selects the distinct tokens of the batch.
    pub(super) fn take(&self, x: &Tensor) -> Result<Tensor> {
        self.distinct.as_ref().map_or_else(|| Ok(x.shallow_clone()), |distinct| distinct.take(x))
    }

    /// Replaces what images add to the outputs of layers by leaves of another graph, and returns
    /// both.
    pub(super) fn cut_images(&self) -> Result<Vec<(Tensor, Tensor)>> {
        self.images.as_ref().map_or(Ok(Vec::new()), ImageTokens::cut)
    }

    /// Expands distinct tokens to the batch.
    pub(super) fn spread(&self, x: &Tensor) -> Result<Tensor> {
        self.distinct.as_ref().map_or_else(|| Ok(x.shallow_clone()), |distinct| distinct.spread(x))
    }
}

impl Model {
    /// [`forward`](Self::forward) in plain libtorch operations.
    pub(super) fn forward_plain(&self, batch: &Packed) -> Result<Tensor> {
        let rows = self.rows(batch)?;
        let angles = self.angles_of(batch, &rows)?;
        let mut x = Residual::new(self.embed_rows(&rows.take(&batch.ids)?, &rows)?);
        for index in 0..self.parameters.layers.len() {
            x = self.row_layer(index, &x, &angles, &rows)?;
        }
        rows.spread(&scaled(self.add_norm(&x, &self.parameters.norm)?.0, self.config.logits_scale)?)
    }

    /// Row layout of a batch, for [`row_layer`](Self::row_layer).
    pub(super) fn rows(&self, batch: &Packed) -> Result<BatchRows> {
        let ends = if self.varlen {
            Ends::EndToEnd(Varlen::rows(&batch.lengths, self.device)?)
        } else {
            Ends::Padded(batch.lengths.clone())
        };
        // With dynamic scaling a token depends on the length of its row.
        let distinct = if self.has_dynamic_rope() { None } else { PrefixDedup::find(batch)? };
        let recurrent = self.recurrent_rows(&batch.lengths, Arithmetic::Libtorch)?;
        let mut rows = BatchRows { ends, distinct, recurrent, routing: None, images: None };
        batch.routing.as_ref().map_or(Ok(()), |routing| self.check_routing(routing))?;
        if self.parameters.vision.is_some() {
            let selected = rows.distinct.as_ref().map(|distinct| distinct.first_copies.as_slice());
            rows.images = self.row_images(&batch.host()?.ids, &batch.lengths, selected)?;
        }
        rows.routing = batch.routing.as_ref().map(|routing| rows.take(routing)).transpose()?;
        Ok(rows)
    }

    /// Embeddings of the distinct tokens of rows.
    pub(super) fn embed_rows(&self, ids: &Tensor, rows: &BatchRows) -> Result<Tensor> {
        self.embed_with(ids, rows.images.as_ref(), None)
    }

    /// One decoder layer over x, the distinct tokens of rows.
    pub(super) fn row_layer(&self, index: usize, x: &Residual, angles: &Angles, rows: &BatchRows) -> Result<Residual> {
        let (layer, scores) = (&self.parameters.layers[index], self.scores(index));
        let routes = self.given_routes(rows.routing.as_ref(), index)?;
        let distinct = rows.distinct.as_ref();
        let recurrence = rows.recurrent.as_ref().map(|rows| Recurrence { rows, distinct, carried: None });
        let with = With { arithmetic: Arithmetic::Libtorch, routes: &routes, cached: None, recurrence };
        let output = self.layer(index, layer, x, angles, with, |q, new| {
            let [k, v] = new.ok_or_else(unexpected)?;
            let (q, k, v) = (rows.spread(q)?, rows.spread(k)?, rows.spread(v)?);
            let seen = match &rows.ends {
                Ends::Padded(lengths) => plain::attend_rows(&q, &k, &v, lengths, scores)?,
                Ends::EndToEnd(varlen) => varlen.attend(&q, &k, &v, scores)?,
            };
            rows.take(&seen)
        })?;
        match &rows.images {
            Some(images) => images.after_layer(index, output),
            None => Ok(output),
        }
    }

    /// Rotary angles of the computed tokens of a batch.
    pub(super) fn angles_of(&self, batch: &Packed, computed: &BatchRows) -> Result<Angles> {
        let mut rows: Vec<(i64, i64)> = batch.lengths.iter().map(|&length| (length, 0)).collect();
        if self.has_dynamic_rope() {
            let host = batch.host()?;
            let mut rest = host.positions.as_slice();
            for (tokens, length) in &mut rows {
                let (row_positions, after) = rest.split_at(rest.len().min(usize::try_from(*tokens).unwrap_or(0)));
                *length = row_positions.iter().max().map_or(0, |last| last + 1);
                rest = after;
            }
        }
        match &computed.images {
            Some(images) => self.angles(&images.positions, &rows),
            None => self.angles(&computed.take(&batch.positions)?, &rows),
        }
    }

    /// One decoder layer over x `[T, E]`. `attend` takes q `[T, H, D]`, and k and v `[T, Hkv, D]`
    /// unless they are in the cache already.
    pub(super) fn layer(
        &self,
        index: usize,
        layer: &Layer,
        x: &Residual,
        angles: &Angles,
        with: With<'_>,
        attend: impl FnOnce(&Tensor, Option<[&Tensor; 2]>) -> Result<Tensor>,
    ) -> Result<Residual> {
        let (adapter, arithmetic) = (self.adapter_use(with), with.arithmetic);
        let (hidden, x) = self.normed(x, layer.input_norm.as_ref())?;
        let mut out = match &layer.mixer {
            Mixer::Attention(attention) => {
                let angles = self.config.layer(index).rope.and_then(|rope| angles.get(rope));
                let (q, new, gate) = self.heads(attention, &hidden, angles, with)?;
                let mut out = attend(&q, new.as_ref().map(|[k, v]| [k, v]))?.f_flatten(1, 2)?;
                if let Some(gate) = gate {
                    out = out.f_mul(&arithmetic.sigmoid(&gate)?)?;
                }
                attention.o.apply(&out, adapter, arithmetic)?
            }
            Mixer::Delta(delta) => self.gated_delta(index, delta, &hidden, with)?,
            Mixer::Conv(conv) => self.short_conv(index, conv, &hidden, with)?,
        };
        if let Some(weight) = &layer.after_attention {
            out = self.norm(&out, weight)?;
        }
        out = scaled(out, self.config.residual_scale)?;
        let (hidden, x) = self.normed(&Residual { x, delta: Some(out) }, layer.before_block.as_ref())?;
        let mut out = match (&layer.block, self.config.experts) {
            (Block::Dense(mlp), _) => self.feed_forward(mlp, &hidden, with)?,
            (Block::Sparse { router, correction, experts, grouped, shared, .. }, shape) => {
                let router = (router, correction.as_ref());
                let chosen = self.mixture(router, (experts, grouped.as_ref()), shape, &hidden, with)?;
                match shared {
                    Some(shared) => chosen.f_add(&self.shared_expert(shared, &hidden, with)?)?,
                    None => chosen,
                }
            }
        };
        if let Some(weight) = &layer.after_block {
            out = self.norm(&out, weight)?;
        }
        Ok(Residual { x, delta: Some(scaled(out, self.config.residual_scale)?) })
    }

    /// Rotated queries `[T, H, D]` of h `[T, E]`, keys and values `[T, Hkv, D]` unless a kernel
    /// writes them to the cache, and the gate of the output `[T, H * D]`.
    fn heads(
        &self,
        layer: &Attention,
        h: &Tensor,
        angles: Option<&(Tensor, Tensor)>,
        with: With<'_>,
    ) -> Result<(Tensor, Option<[Tensor; 2]>, Option<Tensor>)> {
        let adapter = self.adapter_use(with);
        let parts: Vec<&Linear> = std::iter::once(&layer.q).chain(layer.kv.iter().flatten()).collect();
        let stack = layer.qkv.as_ref().filter(|_| with.arithmetic == Arithmetic::Libtorch);
        let heads = |x: &Tensor| x.f_view([h.size()[0], -1, self.config.head_dim as i64]);
        let [queries, keys] = [self.config.num_attention_heads, self.config.num_key_value_heads].map(|n| n as i64);
        let adapted = adapter == AdapterUse::Beside && parts.iter().any(|part| part.lora.is_some());
        let fused_rope = self.kernels.rope && with.arithmetic == Arithmetic::Libtorch;
        // The kernel adds the biases.
        if let (true, Some(stack), Some(cached), false) = (fused_rope, stack, with.cached, adapted)
            && let [q, k, v] = parts[..]
        {
            let projections = stack.without_biases(h, &parts, adapter)?;
            let biases = [q, k, v].map(|part| part.bias.as_ref());
            return self.own_heads(layer, &projections, biases, angles, Some(cached));
        }
        // Queries and keys side by side, as the rotation needs them.
        if let (Some(stack), Some((cos, sin)), true) = (
            stack,
            angles,
            self.varlen
                && !fused_rope
                && layer.head_norms.is_none()
                && !adapted
                && !self.config.output_gate
                && !self.config.interleaved_ropes,
        ) {
            let size = self.config.head_dim as i64;
            let all = stack.apply_in(h, &parts, &[(queries + keys) * size, keys * size], adapter)?;
            let [both, v] = all.as_slice() else { return Err(unexpected()) };
            let (q, k) = rotate_joint(&heads(both)?, cos, sin, [queries, keys])?;
            return Ok((q, Some([k, heads(v)?]), None));
        }
        let all = match stack {
            Some(stack) => stack.apply(h, &parts, adapter)?,
            None if layer.kv.is_none() => {
                let sizes = [queries, keys, keys].map(|heads| heads * self.config.head_dim as i64);
                layer.q.apply(h, adapter, with.arithmetic)?.f_split_with_sizes(&sizes[..], 1)?
            }
            None => parts.iter().map(|part| part.apply(h, adapter, with.arithmetic)).collect::<Result<Vec<_>>>()?,
        };
        if fused_rope && with.cached.is_some() {
            return self.own_heads(layer, &all, [None; 3], angles, with.cached);
        }
        let [q, k, v] = all.as_slice() else { return Err(unexpected()) };
        let (mut q, mut k, mut gate) = match &layer.head_norms {
            Some(norms) if self.config.joint_norms => {
                (heads(&self.norm(q, &norms.q)?)?, heads(&self.norm(k, &norms.k)?)?, None)
            }
            _ => (heads(q)?, heads(k)?, None),
        };
        if self.config.output_gate {
            // [T, H, queries or gate, D]
            let both = q.f_view([h.size()[0], queries, 2, self.config.head_dim as i64])?;
            (q, gate) = (both.f_select(2, 0)?, Some(both.f_select(2, 1)?.f_flatten(1, 2)?));
        }
        if let Some(norms) = layer.head_norms.as_ref().filter(|_| !self.config.joint_norms) {
            (q, k) = (self.norm(&q, &norms.q)?, self.norm(&k, &norms.k)?);
        }
        if fused_rope && angles.is_some() {
            let all = [q.f_flatten(1, 2)?, k.f_flatten(1, 2)?, v.shallow_clone()];
            return self.own_heads(layer, &all, [None; 3], angles, None);
        }
        if let Some((cos, _)) = angles.filter(|_| self.config.interleaved_ropes) {
            // Equal orders of queries and keys do not change their products.
            (q, k) = (plain::halves_apart(&q, cos)?, plain::halves_apart(&k, cos)?);
        }
        if let Some((cos, sin)) = angles {
            (q, k) = if self.varlen {
                // Half of the operations, and a copy: a kernel's launch takes longer.
                rotate_joint(&Tensor::f_cat(&[&q, &k], 1)?, cos, sin, [queries, keys])?
            } else {
                (plain::rotate(&q, cos, sin)?, plain::rotate(&k, cos, sin)?)
            };
        }
        Ok((q, Some([k, heads(v)?]), gate))
    }

    /// Biases, norms of heads in generation, rotation and cache by one kernel.
    fn own_heads(
        &self,
        layer: &Attention,
        projections: &[Tensor],
        biases: [Option<&Tensor>; 3],
        angles: Option<&(Tensor, Tensor)>,
        cached: Option<Cached<'_>>,
    ) -> Result<(Tensor, Option<[Tensor; 2]>, Option<Tensor>)> {
        let [q, k, v] = projections else { return Err(unexpected()) };
        let heads = native::Heads {
            projections: [q, k, v],
            biases,
            norms: layer.head_norms.as_ref().filter(|_| cached.is_some()).map(|norms| [&norms.q, &norms.k]),
            angles: angles.map(|(cos, sin)| (cos, sin)),
            eps: self.config.rms_norm_eps,
            offset: self.norm_offset(),
            dim: self.config.head_dim as i64,
        };
        let (q, new) = native::rotated_heads(&heads, cached)?;
        Ok((q, new, None))
    }

    /// How a layer uses the adapter: merged weights are for generation.
    pub(super) fn adapter_use(&self, with: With<'_>) -> AdapterUse {
        if self.adapter_disabled.get() {
            AdapterUse::Disabled
        } else if self.merged && with.cached.is_some() {
            AdapterUse::Merged
        } else {
            AdapterUse::Beside
        }
    }

    pub(super) fn feed_forward(&self, mlp: &Mlp, h: &Tensor, with: With<'_>) -> Result<Tensor> {
        let (adapter, arithmetic) = (self.adapter_use(with), with.arithmetic);
        let all = match (&mlp.gate_up, &mlp.up) {
            (Some(stack), Some(up)) if arithmetic == Arithmetic::Libtorch => {
                stack.apply(h, &[&mlp.gate, up], adapter)?
            }
            (_, Some(up)) => vec![mlp.gate.apply(h, adapter, arithmetic)?, up.apply(h, adapter, arithmetic)?],
            (_, None) => mlp.gate.apply(h, adapter, arithmetic)?.f_chunk(2, 1)?,
        };
        let [gate, up] = all.try_into().map_err(|_| unexpected())?;
        mlp.down.apply(&self.gated(&gate, &up, arithmetic)?, adapter, arithmetic)
    }

    pub(super) fn gated(&self, gate: &Tensor, up: &Tensor, arithmetic: Arithmetic) -> Result<Tensor> {
        if self.kernels.gated && arithmetic == Arithmetic::Libtorch {
            // Not used with a clamped activation.
            return native::gated(gate, up, self.config.activation == Activation::GeluTanh);
        }
        arithmetic.gated(self.config.activation, gate, up)
    }

    pub(super) fn norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        if self.kernels.norm {
            return Ok(native::add_norm(x, None, weight, self.config.rms_norm_eps, self.norm_offset())?.0);
        }
        let offset = self.config.zero_centred_norms;
        if self.fused_norms && !offset {
            let (norm, _) = x.f_internal_fused_rms_norm(weight.size(), Some(weight), self.config.rms_norm_eps)?;
            return Ok(norm);
        }
        plain::rms_norm(x, weight, self.config.rms_norm_eps, offset)
    }

    /// The norm of a residual stream, and the stream.
    pub(super) fn add_norm(&self, x: &Residual, weight: &Tensor) -> Result<(Tensor, Tensor)> {
        if self.kernels.norm {
            return native::add_norm(&x.x, x.delta.as_ref(), weight, self.config.rms_norm_eps, self.norm_offset());
        }
        let sum = x.sum()?;
        Ok((self.norm(&sum, weight)?, sum))
    }

    /// [`add_norm`](Self::add_norm), or the stream twice without a norm.
    fn normed(&self, x: &Residual, weight: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        match weight {
            Some(weight) => self.add_norm(x, weight),
            None => x.sum().map(|sum| (sum.shallow_clone(), sum)),
        }
    }

    /// What is added to the weights of norms.
    fn norm_offset(&self) -> f64 {
        if self.config.zero_centred_norms { 1.0 } else { 0.0 }
    }

    pub(super) fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let rows = Tensor::f_embedding(&self.parameters.embed, ids, -1, false, false)?;
        if (self.config.embedding_scale - 1.0).abs() < f64::EPSILON {
            return Ok(rows);
        }
        // Rounded to the model's type, as in training.
        Ok(rows.f_mul(&Tensor::f_scalar_tensor(self.config.embedding_scale, (self.kind, self.device))?)?)
    }

    pub(super) fn scores(&self, index: usize) -> Scores<'_> {
        let sinks = match &self.parameters.layers[index].mixer {
            Mixer::Attention(attention) => attention.sinks.as_ref(),
            Mixer::Delta(_) | Mixer::Conv(_) => None,
        };
        Scores { window: self.config.layer(index).window, scale: self.config.attention_scale, sinks }
    }

    pub(super) fn has_dynamic_rope(&self) -> bool {
        self.config.ropes.iter().any(super::Rope::is_dynamic)
    }

    /// Angles at `positions`, `[T]` or `[T, 3]`. `rows` are the number of tokens of each row and
    /// the length of its sequence, on which frequencies can depend.
    pub(super) fn angles(&self, positions: &Tensor, rows: &[(i64, i64)]) -> Result<Angles> {
        let longest = self.config.max_position_embeddings;
        let mut all = Vec::with_capacity(self.config.ropes.len());
        for (rope, frequencies) in self.config.ropes.iter().zip(&self.frequencies) {
            let wide = frequencies.kind();
            let positions = positions.f_to_kind(wide)?;
            let half = if rope.is_dynamic() && rows.iter().any(|&(_, length)| length as usize > longest) {
                let row_frequencies = |&(tokens, length): &(i64, i64)| -> Result<Tensor> {
                    let row_frequencies =
                        rope.frequencies(self.config.head_dim, longest, length, (wide, self.device))?;
                    Ok(row_frequencies.f_unsqueeze(0)?.f_expand([tokens, -1], false)?)
                };
                let each = rows.iter().map(row_frequencies).collect::<Result<Vec<_>>>()?;
                positions.f_unsqueeze(1)?.f_mul(&Tensor::f_cat(&each, 0)?)?
            } else if positions.dim() == 2 {
                let all = positions.f_unsqueeze(-1)?.f_mul(frequencies)?;
                by_axis(&all, &rope.axes(self.config.head_dim), self.device)?
            } else {
                positions.f_outer(frequencies)?
            };
            all.push(plain::angles(&half, rope.magnitude(), self.kind)?);
        }
        Ok(all)
    }
}

/// x times a factor.
pub(super) fn scaled(x: Tensor, factor: f64) -> Result<Tensor> {
    if (factor - 1.0).abs() < f64::EPSILON { Ok(x) } else { Ok(x.f_mul_scalar(factor)?) }
}

/// Rotates queries and keys `[T, H + Hkv, D]` together, and separates them.
fn rotate_joint(both: &Tensor, cos: &Tensor, sin: &Tensor, sizes: [i64; 2]) -> Result<(Tensor, Tensor)> {
    let rotated = plain::rotate_fused(both, cos, sin)?;
    match rotated.f_split_with_sizes(&sizes[..], 1)?.as_slice() {
        [q, k] => Ok((q.shallow_clone(), k.shallow_clone())),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> Error {
    Error::new(error::Kind::Internal, "a product was not separated into its projections")
}
