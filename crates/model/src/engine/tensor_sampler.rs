//! Samples the next tokens of a batch with tensor operations, on the device of the logits.
//!
//! The distribution, its order and the random numbers are the same as in [`super::sampler`]: the
//! token is the inverse of the cumulative distribution at the request's uniform number, by id, or
//! from the most to the least likely token where top-k, top-p or min-p exclude tokens. Sums are in
//! f64. Equal probabilities give equal tokens in both samplers. The softmax of another device
//! rounds differently, which changes a token only if its bound in the cumulative distribution is
//! next to the uniform number.
//!
//! Settings go to the device as one tensor, and 24 bytes per row come back, plus the ids and
//! log-probabilities of recorded sets where a request records them. Logits stay on the device.

use tch::{Device, Kind, Tensor, no_grad_guard};

use super::sampler::Drawn;
use crate::model::{softmax, upload};
use r1_base::error::Result;
use r1_base::mdp::Sampling;

/// Tokens whose probabilities are added before the search, which then reads V / BLOCK sums and one
/// block.
const BLOCK: i64 = 128;

/// A request whose next token is drawn.
pub(super) struct SamplerRow<'a> {
    pub(super) sampling: &'a Sampling,
    /// Sorted ids of the sequence, for the repetition penalty.
    pub(super) penalised: &'a [u32],
    /// In [0, 1); unused by greedy sampling.
    pub(super) uniform: f64,
}

/// Samples a token for each row of logits `[N, V]`; `None` for a row with NaN or +infinity.
///
/// On the CPU, the CPU kernels compute the softmax, and the host's sampler draws the same tokens.
pub(super) fn draw(logits: &Tensor, rows: &[SamplerRow<'_>]) -> Result<Vec<Option<Drawn>>> {
    let softmax = if logits.device() == Device::Cpu { by_kernels } else { by_libtorch };
    draw_from(logits, rows, softmax)
}

/// Probabilities `[N, V]` f32 of logits `[N, V]` f32 times a scale per row.
type SoftmaxFn = fn(&Tensor, &[f32]) -> Result<Tensor>;

fn draw_from(logits: &Tensor, rows: &[SamplerRow<'_>], softmax: SoftmaxFn) -> Result<Vec<Option<Drawn>>> {
    let _guard = no_grad_guard();
    let vocab = logits.size()[1];
    let scales: Vec<f32> = rows.iter().map(|row| scale(row.sampling)).collect();
    let probabilities = softmax(&shifted(logits, rows)?, &scales)?;
    let (cut, whole): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(|&row| cuts(rows[row].sampling, vocab));
    let mut groups = Vec::with_capacity(2);
    if !whole.is_empty() {
        groups.push(DrawGroup::whole(&probabilities, rows, whole)?);
    }
    if !cut.is_empty() {
        groups.push(DrawGroup::cut(&probabilities, rows, cut)?);
    }
    let numbers: Vec<&Tensor> = groups.iter().map(|group| &group.numbers).collect();
    // The first transfer to the host, which waits for the model.
    let numbers = if numbers.is_empty() { Vec::new() } else { list::<f64>(&Tensor::f_cat(&numbers, 0)?)? };
    let (mut all, mut rest): (Vec<Option<Drawn>>, _) = ((0..rows.len()).map(|_| None).collect(), numbers.as_slice());
    for group in groups {
        let (group_numbers, after) = rest.split_at(3 * group.places.len());
        rest = after;
        group.read(group_numbers, rows, &mut all)?;
    }
    Ok(all)
}

/// Rows that are drawn by the same operations.
struct DrawGroup {
    /// Places among the rows.
    places: Vec<usize>,
    /// [n, 3] f64: id, log-probability (NaN for logits that are not finite), size of the support.
    numbers: Tensor,
    /// The most likely tokens, if a row records them or its support.
    ranked: Option<Ranked>,
    /// `[n, 1]` f64: mass of the tokens that were not cut off.
    mass: Tensor,
}

impl DrawGroup {
    /// Rows over the whole vocabulary, and greedy ones.
    fn whole(probabilities: &Tensor, rows: &[SamplerRow<'_>], places: Vec<usize>) -> Result<Self> {
        let p = selected(probabilities, &places)?;
        let greedy: Vec<bool> = places.iter().map(|&row_index| rows[row_index].sampling.temperature == 0.0).collect();
        let uniform: Vec<f64> = places.iter().map(|&row_index| rows[row_index].uniform).collect();
        let (uniform, greedy) = match (greedy.contains(&true), greedy.contains(&false)) {
            (_, false) => (None, Greedy::All),
            (false, true) => (Some(column(&uniform, &p)?), Greedy::None),
            (true, true) => (Some(column(&uniform, &p)?), Greedy::Some(column(&greedy, &p)?)),
        };
        let (_, numbers, mass) = whole(&p, uniform.as_ref(), &greedy)?;
        let top = largest(&places, rows, |sampling| sampling.top_logprobs) as i64;
        let ranked = if top > 0 { Some(Ranked::new(&p, top, &vocabulary(&p)?)?) } else { None };
        Ok(Self { places, numbers, ranked, mass })
    }

    /// Rows of which top-k, top-p or min-p cut tokens off.
    fn cut(probabilities: &Tensor, rows: &[SamplerRow<'_>], places: Vec<usize>) -> Result<Self> {
        let (p, vocab) = (selected(probabilities, &places)?, probabilities.size()[1]);
        let of = |number: fn(&SamplerRow<'_>) -> f64| -> Result<Tensor> {
            column(&places.iter().map(|&row_index| number(&rows[row_index])).collect::<Vec<f64>>(), &p)
        };
        let longest = largest(&places, rows, |sampling| limit(sampling, vocab) as usize) as i64;
        let ranked = Ranked::new(&p, longest, &vocabulary(&p)?)?;
        let limits: Vec<i64> = places.iter().map(|&row_index| limit(rows[row_index].sampling, vocab)).collect();
        let bounds = Bounds {
            limits: column(&limits, &p)?,
            top_p: of(|row| top_p(row.sampling))?,
            min_p: of(|row| row.sampling.min_p)?,
        };
        let (_, numbers, mass) = cut(&ranked, &bounds, &of(|row| row.uniform)?)?;
        Ok(Self { numbers, ranked: Some(ranked), mass, places })
    }

    /// Writes the draws of the group to their places; `numbers` are its own on the host.
    fn read(self, numbers: &[f64], rows: &[SamplerRow<'_>], all: &mut [Option<Drawn>]) -> Result<()> {
        let (numbers, _) = numbers.as_chunks::<3>();
        let width_needed = numbers.iter().map(|[_, _, kept]| *kept as i64).max().unwrap_or(0);
        let top = largest(&self.places, rows, |sampling| sampling.top_logprobs) as i64;
        let (mut ids, mut logprobs, mut width) = (Vec::new(), Vec::new(), 0);
        if let Some(ranked) = &self.ranked {
            let top = top.min(ranked.count);
            width = width_needed.max(top) as usize;
            ids = list::<i64>(&ranked.ids.f_narrow(1, 0, width as i64)?)?;
            if top > 0 {
                logprobs = list::<f32>(&ranked.logprobs(top, &self.mass)?)?;
            }
        }
        for (row, (&row_index, [id, logprob, kept])) in self.places.iter().zip(numbers).enumerate() {
            if logprob.is_nan() {
                continue;
            }
            let ids: Vec<u32> = ids.iter().skip(row * width).take(width).map(|&id| id as u32).collect();
            let kept = *kept as usize;
            let top = rows[row_index].sampling.top_logprobs.min(if kept > 0 { kept } else { width });
            let stride = logprobs.len() / self.places.len();
            let row_logprobs = logprobs.iter().skip(row * stride).take(stride);
            let mut support = ids.get(..kept).unwrap_or_default().to_vec();
            support.sort_unstable();
            let top = ids.iter().copied().zip(row_logprobs.copied()).take(top).collect();
            all[row_index] = Some(Drawn { id: *id as u32, logprob: *logprob as f32, support, top });
        }
        Ok(())
    }
}

/// The rows of a batch that are sampled greedily.
pub(super) enum Greedy {
    All,
    None,
    /// `[n, 1]` bool
    Some(Tensor),
}

/// Draws from probabilities `[n, V]` f32 at uniform numbers `[n, 1]` f64, which rows that are not
/// greedy need. Gives ids `[n, 1]` i64, `[n, 3]` of [`packed`], and the mass `[n, 1]` f64. No
/// operation waits for the device.
pub(super) fn whole(p: &Tensor, uniform: Option<&Tensor>, greedy: &Greedy) -> Result<(Tensor, Tensor, Tensor)> {
    let [count, vocab] = [p.size()[0], p.size()[1]];
    let padding = (BLOCK - vocab % BLOCK) % BLOCK;
    let padded = if padding > 0 { p.f_constant_pad_nd([0, padding])? } else { p.shallow_clone() };
    let blocks = padded.f_view([count, -1, BLOCK])?;
    // [n, V / BLOCK]
    let sums = blocks.f_sum_dim_intlist(&[2][..], false, Kind::Double)?.f_cumsum(1, None)?;
    let mass = last(&sums)?;
    let sampled = |uniform: &Tensor| -> Result<Tensor> {
        let target = uniform.f_mul(&mass)?;
        let block = place_of(&sums, &mass, &target)?;
        // The part of the target within its block.
        let before = sums.f_constant_pad_nd([1, 0])?.f_gather(1, &block, false)?;
        let index = block.f_unsqueeze(2)?.f_expand([-1, -1, BLOCK], false)?;
        let inside = blocks.f_gather(1, &index, false)?.f_squeeze_dim(1)?.f_cumsum(1, Kind::Double)?;
        let offset = place_of(&inside, &last(&inside)?, &target.f_sub(&before)?)?;
        Ok(block.f_mul_scalar(BLOCK)?.f_add(&offset)?)
    };
    let id = match (greedy, uniform) {
        (Greedy::None, Some(uniform)) => sampled(uniform)?,
        (Greedy::Some(greedy), Some(uniform)) => p.f_argmax(1, true)?.f_where_self(greedy, &sampled(uniform)?)?,
        _ => p.f_argmax(1, true)?,
    };
    let numbers = packed(&id, &p.f_gather(1, &id, false)?, &mass, None)?;
    Ok((id, numbers, mass))
}

/// What cuts tokens off, per row.
pub(super) struct Bounds {
    /// `[n, 1]` i64: the most tokens, by top-k.
    pub(super) limits: Tensor,
    /// `[n, 1]` f64: see [`top_p`].
    pub(super) top_p: Tensor,
    /// `[n, 1]` f64
    pub(super) min_p: Tensor,
}

/// The most tokens that top-k keeps.
pub(super) fn limit(sampling: &Sampling, vocab: i64) -> i64 {
    match sampling.top_k as i64 {
        0 => vocab,
        top_k => top_k.min(vocab),
    }
}

/// The fraction of the mass that top-p keeps; infinite if it keeps all.
pub(super) fn top_p(sampling: &Sampling) -> f64 {
    if sampling.top_p < 1.0 { sampling.top_p } else { f64::INFINITY }
}

/// As [`whole`], from the most likely tokens of which the bounds cut some off. `ranked` has all
/// tokens within the limits.
pub(super) fn cut(ranked: &Ranked, bounds: &Bounds, uniform: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let within = ranked.places.f_unsqueeze(0)?.f_lt_tensor(&bounds.limits)?;
    let kept = ranked.values.f_mul(&within)?.f_to_kind(Kind::Double)?;
    let sums = kept.f_cumsum(1, None)?;
    // The smallest set with at least the fraction top_p of the mass.
    let sufficient = count(&sums.f_lt_tensor(&last(&sums)?.f_mul(&bounds.top_p)?)?)?.f_add_scalar(1)?;
    let least = kept.f_narrow(1, 0, 1)?.f_mul(&bounds.min_p)?;
    let likely = count(&kept.f_ge_tensor(&least)?)?;
    let kept = bounds.limits.f_minimum(&sufficient)?.f_minimum(&likely)?.f_clamp_min(1)?;
    let mass = sums.f_gather(1, &kept.f_sub_scalar(1)?, false)?;
    let rank = place_of(&sums, &mass, &uniform.f_mul(&mass)?)?;
    let (id, chosen) = (ranked.ids.f_gather(1, &rank, false)?, ranked.values.f_gather(1, &rank, false)?);
    let numbers = packed(&id, &chosen, &mass, Some(&kept))?;
    Ok((id, numbers, mass))
}

/// The most likely tokens of rows, most likely first, ties by id.
pub(super) struct Ranked {
    /// [n, count] i64 and f32.
    pub(super) ids: Tensor,
    values: Tensor,
    pub(super) count: i64,
    /// `[count]` i64: 0, 1, 2, …
    places: Tensor,
}

impl Ranked {
    /// `all` are the ids of the vocabulary, `[V]` i64.
    pub(super) fn new(probabilities: &Tensor, count: i64, all: &Tensor) -> Result<Self> {
        let vocab = probabilities.size()[1];
        let places = all.f_narrow(0, 0, count.min(vocab))?;
        if count >= vocab {
            let (values, ids) = probabilities.f_sort_stable(true, 1, true)?;
            return Ok(Self { ids, values, count: vocab, places });
        }
        // The bits of a number that is not negative are in its order; the id decides among equals.
        let bits = probabilities.f_view_dtype(Kind::Int)?.f_to_kind(Kind::Int64)?;
        let keys = bits.f_mul_scalar(1_i64 << 32)?.f_sub(all)?;
        let (_, ids) = keys.f_topk(count, 1, true, true)?;
        Ok(Self { values: probabilities.f_gather(1, &ids, false)?, ids, count, places })
    }

    /// Log-probabilities `[n, top]` f32 of the most likely tokens, with the mass `[n, 1]` of all
    /// kept ones.
    pub(super) fn logprobs(&self, top: i64, mass: &Tensor) -> Result<Tensor> {
        let share = self.values.f_narrow(1, 0, top)?.f_to_kind(Kind::Double)?.f_div(mass)?;
        Ok(share.f_log()?.f_to_kind(Kind::Float)?)
    }
}

/// The ids of the vocabulary of `p` `[n, V]`, `[V]` i64.
fn vocabulary(p: &Tensor) -> Result<Tensor> {
    Ok(Tensor::f_arange(p.size()[1], (Kind::Int64, p.device()))?)
}

/// Whether tokens of a vocabulary of this size can be cut off.
pub(super) fn cuts(sampling: &Sampling, vocab: i64) -> bool {
    let top_k = sampling.top_k > 0 && (sampling.top_k as i64) < vocab;
    sampling.temperature > 0.0 && (top_k || sampling.top_p < 1.0 || sampling.min_p > 0.0)
}

/// Factor of the logits.
pub(super) fn scale(sampling: &Sampling) -> f32 {
    if sampling.temperature == 0.0 { 1.0 } else { (1.0 / sampling.temperature) as f32 }
}

/// The logits in f32 with repetition penalty and bias, in a copy where any applies.
fn shifted(logits: &Tensor, rows: &[SamplerRow<'_>]) -> Result<Tensor> {
    let logits = logits.f_to_kind(Kind::Float)?;
    let (vocab, device) = (logits.size()[1], logits.device());
    let mut penalised: Vec<(i64, f32)> = Vec::new();
    let mut biased: Vec<(i64, f32)> = Vec::new();
    for (row, begin) in rows.iter().zip((0..).step_by(vocab as usize)) {
        let in_vocab = |id: u32| i64::from(id) < vocab;
        if row.sampling.penalises() {
            let penalty = row.sampling.repetition_penalty as f32;
            let ids = row.penalised.iter().filter(|&&id| in_vocab(id));
            penalised.extend(ids.map(|&id| (begin + i64::from(id), penalty)));
        }
        let bias = row.sampling.logit_bias.iter().filter(|&(&id, _)| in_vocab(id));
        biased.extend(bias.map(|(&id, &bias)| (begin + i64::from(id), bias as f32)));
    }
    if penalised.is_empty() && biased.is_empty() {
        return Ok(logits);
    }
    let flat = logits.f_flatten(0, 1)?;
    let mut changed = flat.f_empty_like()?;
    changed.f_copy_(&flat)?;
    let change = |list: &[(i64, f32)], by: fn(&Tensor, &Tensor) -> Result<Tensor>| -> Result<()> {
        if list.is_empty() {
            return Ok(());
        }
        let (places, numbers): (Vec<i64>, Vec<f32>) = list.iter().copied().unzip();
        let places = upload(&Tensor::f_from_slice(&places)?, device)?;
        let numbers = upload(&Tensor::f_from_slice(&numbers)?, device)?;
        let new = by(&changed.f_index_select(0, &places)?, &numbers)?;
        let _ = changed.shallow_clone().f_index_copy_(0, &places, &new)?;
        Ok(())
    };
    change(&penalised, penalise)?;
    change(&biased, |old, bias| Ok(old.f_add(bias)?))?;
    Ok(changed.f_view([-1, vocab])?)
}

/// Logits with the repetition penalty.
pub(super) fn penalise(logits: &Tensor, penalty: &Tensor) -> Result<Tensor> {
    Ok(logits.f_div(penalty)?.f_where_self(&logits.f_gt(0.0)?, &logits.f_mul(penalty)?)?)
}

/// The softmax of the host's sampler.
fn by_kernels(logits: &Tensor, scales: &[f32]) -> Result<Tensor> {
    let mut all = list::<f32>(logits)?;
    let vocab = all.len() / scales.len().max(1);
    for (row, &scale) in all.chunks_exact_mut(vocab.max(1)).zip(scales) {
        softmax(row, scale);
    }
    Ok(Tensor::f_from_slice(&all)?.f_view_as(logits)?)
}

fn by_libtorch(logits: &Tensor, scales: &[f32]) -> Result<Tensor> {
    if scales.iter().all(|scale| (scale - 1.0).abs() < f32::EPSILON) {
        return Ok(logits.f_softmax(-1, Kind::Float)?);
    }
    Ok(logits.f_mul(&column(scales, logits)?)?.f_softmax(-1, Kind::Float)?)
}

/// Probabilities `[n, V]` f32 of logits `[n, V]` times `scales` `[n, 1]` f32: by the CPU kernels,
/// which read the numbers, or by libtorch, which does not wait for them.
pub(super) fn softmax_of(logits: &Tensor, scales: &Tensor, kernels: bool) -> Result<Tensor> {
    let logits = logits.f_to_kind(Kind::Float)?;
    if kernels {
        return by_kernels(&logits, &list::<f32>(scales)?);
    }
    Ok(logits.f_mul(scales)?.f_softmax(-1, Kind::Float)?)
}

/// The first place of running sums `[n, K]` that exceeds `target` `[n, 1]`; the last one with mass
/// if rounding puts the target at the total.
fn place_of(sums: &Tensor, total: &Tensor, target: &Tensor) -> Result<Tensor> {
    let past = count(&sums.f_le_tensor(target)?)?;
    Ok(past.f_minimum(&count(&sums.f_lt_tensor(total)?)?)?)
}

/// [n, 3] f64: id, log-probability, size of the support.
fn packed(id: &Tensor, p: &Tensor, mass: &Tensor, kept: Option<&Tensor>) -> Result<Tensor> {
    let logprob = p.f_to_kind(Kind::Double)?.f_div(mass)?.f_log()?;
    let id = id.f_to_kind(Kind::Double)?;
    let kept = kept.map_or_else(|| id.f_zeros_like(), |kept| kept.f_to_kind(Kind::Double))?;
    Ok(Tensor::f_cat(&[id, logprob, kept], 1)?)
}

/// Number of true entries of each row, `[n, 1]` i64.
fn count(flags: &Tensor) -> Result<Tensor> {
    Ok(flags.f_sum_dim_intlist(&[1][..], true, Kind::Int64)?)
}

/// The last column, `[n, 1]`.
fn last(sums: &Tensor) -> Result<Tensor> {
    Ok(sums.f_narrow(1, sums.size()[1] - 1, 1)?)
}

/// A number per row, `[n, 1]`, on the device of `like`.
fn column<T: tch::kind::Element>(numbers: &[T], like: &Tensor) -> Result<Tensor> {
    upload(&Tensor::f_from_slice(numbers)?.f_unsqueeze(1)?, like.device())
}

/// The rows at `places`; all of them are in order.
fn selected(x: &Tensor, places: &[usize]) -> Result<Tensor> {
    if places.len() as i64 == x.size()[0] {
        return Ok(x.shallow_clone());
    }
    let places: Vec<i64> = places.iter().map(|&row_index| row_index as i64).collect();
    Ok(x.f_index_select(0, &upload(&Tensor::f_from_slice(&places)?, x.device())?)?)
}

/// The largest number that the settings of a group have.
fn largest(places: &[usize], rows: &[SamplerRow<'_>], number: impl Fn(&Sampling) -> usize) -> usize {
    places.iter().map(|&row_index| number(rows[row_index].sampling)).max().unwrap_or(0)
}

/// All numbers of a tensor, on the host.
pub(super) fn list<T: tch::kind::Element + Clone + Default>(x: &Tensor) -> Result<Vec<T>> {
    let x = x.f_contiguous()?.f_to_device(Device::Cpu)?;
    let mut all = vec![T::default(); x.numel()];
    x.f_copy_data(&mut all, x.numel())?;
    Ok(all)
}

#[cfg(test)]
mod tests;
