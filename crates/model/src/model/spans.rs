//! Generation in plain libtorch operations: spans of sequences over the cache, every family, device
//! and type.

use tch::{Device, Kind, Tensor};

use super::decoder::{Angles, Residual, With, scaled};
use super::images::{ImageTokens, by_axis};
use super::plain::{self, Arithmetic};
use super::recurrence::{Carried, Recurrence, RecurrentRows};
use super::{KvCache, Model, Span};
use crate::native::{self, Cached};
use r1_base::error::Result;

/// The tokens of spans.
pub(super) struct SpanTokens {
    /// `[T]` i64 each.
    ids: Tensor,
    pub positions: Tensor,
    slots: Tensor,
    /// Tokens of each span, and of its sequence with them.
    pub lengths: Vec<(i64, i64)>,
    /// `[spans]` i64: the last token of each.
    ends: Tensor,
    /// Rows for recurrent layers, and their slots.
    recurrent: Option<(RecurrentRows, Tensor)>,
    images: Option<ImageTokens>,
}

/// The tokens of a step on the device: `[T]` i64 each.
#[derive(Clone, Copy)]
pub(super) struct StepTokens<'a> {
    pub ids: &'a Tensor,
    pub positions: &'a Tensor,
    pub slots: &'a Tensor,
    /// Rows for recurrent layers, and their slots.
    pub recurrent: Option<(&'a RecurrentRows, &'a Tensor)>,
    pub images: Option<&'a ImageTokens>,
}

impl SpanTokens {
    pub(super) fn new(items: &[Span<'_>], model: &Model, cache: &KvCache, arithmetic: Arithmetic) -> Result<Self> {
        let device = model.device;
        let tensor = |numbers: Vec<i64>| native::upload(&Tensor::f_from_slice(&numbers)?, device);
        let each = |number: fn(&Span<'_>, usize) -> i64| {
            tensor(items.iter().flat_map(|span| (0..span.ids.len()).map(move |at| number(span, at))).collect())
        };
        let lengths = items.iter().map(|span| (span.ids.len() as i64, (span.start + span.ids.len()) as i64));
        let ends = items.iter().scan(0, |end, span| {
            *end += span.ids.len() as i64;
            Some(*end - 1)
        });
        let slots = items.iter().map(|span| span.slot as i64).collect();
        let rows: Vec<i64> = items.iter().map(|span| span.ids.len() as i64).collect();
        Ok(Self {
            recurrent: model.recurrent_rows(&rows, arithmetic)?.zip(Some(tensor(slots)?)),
            ids: each(|span, at| i64::from(span.ids[at]))?,
            positions: each(|span, at| (span.start + at) as i64)?,
            slots: each(|span, _| span.slot as i64)?,
            lengths: lengths.collect(),
            ends: tensor(ends.collect())?,
            images: model.span_images(&mut cache.images.borrow_mut(), items)?,
        })
    }

    pub(super) fn step(&self) -> StepTokens<'_> {
        let recurrent = self.recurrent.as_ref().map(|(rows, slots)| (rows, slots));
        let images = self.images.as_ref();
        StepTokens { ids: &self.ids, positions: &self.positions, slots: &self.slots, recurrent, images }
    }

    /// The positions that rotate queries and keys, `[T]` or `[T, 3]`.
    pub(super) fn rotary_positions(&self) -> &Tensor {
        self.images.as_ref().map_or(&self.positions, |images| &images.positions)
    }

    /// The rows of x `[T, E]` of the last token of each span.
    pub(super) fn last(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_index_select(0, &self.ends)?)
    }
}

/// Attention of queries `[T, H, D]` over the cached keys and values of a layer, `[slots, capacity,
/// Hkv, D]`.
type AttendCached<'a> = &'a dyn Fn([&Tensor; 3], plain::Scores<'_>) -> Result<Tensor>;

impl Model {
    /// [`step`](Self::step) in plain libtorch operations, after validation and growth of the cache.
    pub(super) fn step_plain(
        &self,
        cache: &mut KvCache,
        items: &[Span<'_>],
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        let arithmetic = self.generation_arithmetic();
        let tokens = SpanTokens::new(items, self, cache, arithmetic)?;
        let windows: Vec<Option<usize>> =
            (0..self.config.num_hidden_layers).map(|index| self.config.layer(index).window).collect();
        let groups = match arithmetic {
            Arithmetic::Libtorch => SpanGroup::all(items, &windows, self.device)?,
            Arithmetic::Rowwise => Vec::new(),
        };
        let angles = match arithmetic {
            Arithmetic::Rowwise if !self.has_dynamic_rope() => {
                self.tabulated_angles(tokens.rotary_positions(), &tokens.lengths)?
            }
            _ => self.angles(tokens.rotary_positions(), &tokens.lengths)?,
        };
        let attend = |[q, keys, values]: [&Tensor; 3], scores: plain::Scores<'_>| {
            if arithmetic == Arithmetic::Rowwise {
                let scale = scores.scale.unwrap_or((self.config.head_dim as f64).powf(-0.5));
                let StepTokens { positions, slots, .. } = tokens.step();
                return native::attend_rows([q, keys, values], slots, positions, (scale, scores.window), scores.sinks);
            }
            let mut out = q.f_zeros_like()?;
            for group in &groups {
                let held = |x: &Tensor| -> Result<Tensor> {
                    Ok(x.f_narrow(1, 0, group.context)?.f_index_select(0, &group.slots)?.f_transpose(1, 2)?)
                };
                let queries = q.f_index_select(0, &group.tokens)?;
                let queries = queries.f_view([-1, group.length, q.size()[1], q.size()[2]])?.f_transpose(1, 2)?;
                let visible = group.visible(scores.window);
                let seen = plain::attend_cache(&queries, &held(keys)?, &held(values)?, visible, scores)?;
                let seen = seen.f_transpose(1, 2)?.f_reshape([-1, q.size()[1], q.size()[2]])?;
                let _ = out.f_index_copy_(0, &group.tokens, &seen)?;
            }
            Ok(out)
        };
        let x = self.span_layers(cache, tokens.step(), &angles, arithmetic, &attend, stop)?;
        let Some(x) = x else { return Ok(None) };
        let hidden = self.norm(&tokens.last(&x)?, &self.parameters.norm)?;
        let hidden = scaled(hidden, self.config.logits_scale)?;
        Ok(Some(arithmetic.linear(&hidden, &self.parameters.lm_head, None)?.f_to_kind(Kind::Float)?))
    }

    /// All layers over the tokens of a step, which are written to the cache. `None` if stopped.
    pub(super) fn span_layers(
        &self,
        cache: &KvCache,
        tokens: StepTokens<'_>,
        angles: &Angles,
        arithmetic: Arithmetic,
        attend: AttendCached<'_>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Tensor>> {
        let StepTokens { ids, positions, slots, recurrent, images } = tokens;
        let carried = recurrent.zip(cache.states.as_ref()).map(|((_, slots), states)| Carried::new(states, slots));
        let recurrence = recurrent.zip(carried.as_ref());
        let recurrence =
            recurrence.map(|((rows, _), carried)| Recurrence { rows, distinct: None, carried: Some(carried) });
        let mut x = Residual::new(self.embed_with(ids, images, Some(&mut cache.images.borrow_mut()))?);
        for (index, layer) in self.parameters.layers.iter().enumerate() {
            if stop() {
                return Ok(None);
            }
            let (mut keys, mut values) = (cache.keys[index].shallow_clone(), cache.values[index].shallow_clone());
            let cached = Cached { keys: &cache.keys[index], values: &cache.values[index], slots, positions };
            let with = With { arithmetic, routes: &cache.routes(), cached: Some(cached), recurrence };
            x = self.layer(index, layer, &x, angles, with, |q, new| {
                if let Some([k, v]) = new {
                    let cells = [Some(slots), Some(positions)];
                    let _ = keys.f_index_put_(&cells, k, false)?;
                    let _ = values.f_index_put_(&cells, v, false)?;
                }
                attend([q, &keys, &values], self.scores(index))
            })?;
            if let Some(images) = images {
                x = images.after_layer(index, x)?;
            }
        }
        let x = x.sum()?;
        carried.map_or(Ok(()), Carried::commit)?;
        Ok(Some(x))
    }

    /// In f32 on the CPU, results must not depend on the batch, so that equal seeds give equal
    /// samples.
    fn generation_arithmetic(&self) -> Arithmetic {
        let rowwise = self.kind == Kind::Float && self.device == Device::Cpu && native::has_cpu_kernels();
        if rowwise { Arithmetic::Rowwise } else { Arithmetic::Libtorch }
    }

    /// Angles at `positions`, `[T]` or `[T, 3]`, from tables of fixed size: the last bit of
    /// libtorch's cosine depends on the index within the tensor.
    fn tabulated_angles(&self, positions: &Tensor, rows: &[(i64, i64)]) -> Result<Angles> {
        const TABLE: i64 = 256;
        let longest = rows.iter().map(|(_, length)| *length).max().unwrap_or(0);
        let tables = (0..(longest + TABLE - 1) / TABLE)
            .map(|table| {
                let positions = Tensor::f_arange_start(table * TABLE, (table + 1) * TABLE, (Kind::Int64, self.device))?;
                self.angles(&positions, &[])
            })
            .collect::<Result<Vec<_>>>()?;
        (0..self.config.ropes.len())
            .map(|rope| {
                let whole = |part: fn(&(Tensor, Tensor)) -> &Tensor| -> Result<Tensor> {
                    let all: Vec<&Tensor> = tables.iter().map(|table| part(&table[rope])).collect();
                    let all = Tensor::f_cat(&all, 0)?.f_index_select(0, &positions.f_flatten(0, -1)?)?;
                    if positions.dim() == 1 {
                        return Ok(all);
                    }
                    // The second half of a head has the angles of the first.
                    let axes = self.config.ropes[rope].axes(self.config.head_dim).repeat(2);
                    by_axis(&all.f_view([-1, 3, axes.len() as i64])?, &axes, self.device)
                };
                Ok((whole(|(cos, _)| cos)?, whole(|(_, sin)| sin)?))
            })
            .collect()
    }
}

/// Spans of equal length, for batched attention.
struct SpanGroup {
    length: i64,
    /// Longest context, including the new tokens.
    context: i64,
    /// `[spans]`
    slots: Tensor,
    /// [spans * length] indices into the packed batch.
    tokens: Tensor,
    /// [spans, 1, length, context] masks, for each window of the layers.
    visible: Vec<(Option<usize>, Tensor)>,
}

impl SpanGroup {
    fn all(items: &[Span<'_>], windows: &[Option<usize>], device: Device) -> Result<Vec<Self>> {
        let mut by_length: std::collections::BTreeMap<usize, Vec<(usize, &Span<'_>)>> =
            std::collections::BTreeMap::new();
        let mut at = 0;
        for span in items {
            by_length.entry(span.ids.len()).or_default().push((at, span));
            at += span.ids.len();
        }
        let mut distinct = windows.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        by_length
            .into_iter()
            .map(|(length, spans)| {
                let tensor =
                    |numbers: Vec<i64>| -> Result<Tensor> { native::upload(&Tensor::f_from_slice(&numbers)?, device) };
                let context = spans.iter().map(|(_, span)| span.start + length).max().unwrap_or(0) as i64;
                let each = |(first, _): &(usize, _)| (*first as i64)..(*first + length) as i64;
                let starts = tensor(spans.iter().map(|(_, span)| span.start as i64).collect())?;
                let last = starts.f_unsqueeze(1)?.f_add(&Tensor::f_arange(length as i64, (Kind::Int64, device))?)?;
                let visible = distinct
                    .iter()
                    .map(|&window| Ok((window, plain::visible(&last, context, window)?.f_unsqueeze(1)?)))
                    .collect::<Result<_>>()?;
                Ok(Self {
                    length: length as i64,
                    context,
                    slots: tensor(spans.iter().map(|(_, span)| span.slot as i64).collect())?,
                    tokens: tensor(spans.iter().flat_map(each).collect())?,
                    visible,
                })
            })
            .collect()
    }

    fn visible(&self, window: Option<usize>) -> Option<&Tensor> {
        self.visible.iter().find(|(key, _)| *key == window).map(|(_, visible)| visible)
    }
}
